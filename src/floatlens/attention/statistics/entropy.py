"""Entropy of the attention rows, in nats: how widely a head spreads its attention."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic


@register_statistic
class Entropy(Statistic):
    """Mean over queries of -sum_k p log p; with a learned sink, of the distribution given that a position is attended."""

    name = "entropy"
    dims = ("head",)
    tiled, pooled, by_row = False, True, True
    quantities = ()

    def __init__(self) -> None:
        self.sum_BH = torch.zeros(0)
        self.queries_B = torch.zeros(0)

    def result(self, call: Call) -> torch.Tensor:
        if call.fresh:
            self.sum_BH, self.queries_B = call.spread_BH, call.queries_B
        else:
            self.sum_BH, self.queries_B = self.sum_BH + call.spread_BH, self.queries_B + call.queries_B
        return self.sum_BH / self.queries_B.view(-1, 1)
