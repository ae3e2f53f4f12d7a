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
        if call.fresh:
            self.sum_BH = torch.zeros(call.B, call.H, device=call.q_BHQD.device)
            self.queries_B = torch.zeros(call.B, device=call.q_BHQD.device)
        self.queries_B = self.queries_B + call.queries_B

    def tile(self, tile: Tile) -> None:
        call, scores, weights = tile.call, tile.scores_BHQT, tile.weights_BHQT
        if call.causal or call.mask is not None:
            scores = scores.clamp_min_(torch.finfo(torch.float32).min)  # 0 · -inf is not a number; 0 · min is 0
        if call.sinks_H is not None:
            # the distribution over positions, given that one is attended; a row of padding stays 0
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        rows_BHQ = scores.amax(-1) - weights.amax(-1).log()
        if tile.real_BQ is not None:
            rows_BHQ = rows_BHQ.masked_fill(~tile.real_BQ[:, None], 0.0)
        self.sum_BH += rows_BHQ.sum(-1) - torch.mul(weights, scores, out=tile.scratch()).sum((-1, -2))

    def result(self, call: Call) -> torch.Tensor:
        return self.sum_BH / self.queries_B.view(-1, 1)
