"""Entropy of the attention rows, in nats: how widely a head spreads its attention."""

from __future__ import annotations

import torch

from floatlens.observe.call import Call
from floatlens.observe.statistic import Statistic
from floatlens.observe.tile import Tile


class Entropy(Statistic):
    """Mean over queries of -sum_k p log p.

    With s the scores, -sum p log p = log Z - sum p s, and log Z = max(s) - log(max(p)): the largest weight of a row is
    at least 1/T, so its logarithm is safe, and no second exponential is needed.
    """

    name = "entropy"
    dims = ("head",)

    def __init__(self) -> None:
        self.sum_BH = torch.zeros(0)
        self.queries_B = torch.zeros(0)

    def start(self, call: Call) -> None:
        device = call.q_BHQD.device
        if call.fresh:
            self.sum_BH = torch.zeros(call.B, call.H, device=device)
            self.queries_B = torch.zeros(call.B, device=device)
        self.queries_B = self.queries_B + call.queries_B
        # Rows are filled tile by tile and put together once, in `result`.
        self.score_BHQ, self.weight_BHQ, self.mean_BHQ = torch.empty(3, call.B, call.H, call.Q, device=device)

    def tile(self, tile: Tile) -> None:
        call, scores, weights = tile.call, tile.scores_BHQT, tile.weights_BHQT
        if call.causal or call.mask is not None:
            scores = scores.clamp_min_(torch.finfo(torch.float32).min)  # 0 · -inf is not a number; 0 · min is 0
        if call.sinks_H is not None:
            # the distribution over positions, given that one is attended; a row of padding stays 0
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        rows = (slice(None), slice(None), slice(tile.start, tile.end))
        self.score_BHQ[rows] = scores.amax(-1)
        self.weight_BHQ[rows] = weights.amax(-1)
        self.mean_BHQ[rows] = torch.mul(weights, scores, out=tile.scratch()).sum(-1)

    def result(self, call: Call) -> torch.Tensor:
        entropy_BHQ = self.score_BHQ - self.weight_BHQ.log() - self.mean_BHQ
        if call.real_BQ is not None:
            entropy_BHQ = entropy_BHQ.masked_fill(~call.real_BQ[:, None], 0.0)
        self.sum_BH = self.sum_BH + entropy_BHQ.sum(-1)
        return self.sum_BH / self.queries_B.view(-1, 1)
