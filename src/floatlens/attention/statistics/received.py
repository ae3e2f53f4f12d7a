"""Received attention: the mean over queries of the attention that each position gets."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import RunningSum, Statistic


@register_statistic
class Received(Statistic):
    """Column mean of attention, over the queries of the step: sums to 1 over the positions."""

    name = "received"
    dims = ("head", "position")
    tiled, pooled, by_row = False, True, True
    quantities = ()

    def __init__(self) -> None:
        self.sum_BHT = RunningSum()
        self.queries_B = torch.zeros(0)

    def start(self, call: Call) -> None:
        if call.fresh:
            self.sum_BHT.reset()
            self.queries_B = call.queries_B
        else:
            self.queries_B = self.queries_B + call.queries_B

    def result(self, call: Call) -> torch.Tensor:
        self.sum_BHT.add(call.pooled_BHRT.sum(2), call.first_key)
        return self.sum_BHT.value / self.queries_B.view(-1, 1, 1)


@register_statistic
class ReceivedFinal(Received):
    """Received attention over all rows that will not be computed again: the prompt and finished blocks of a block model.

    A model without such rows has no value here; for an autoregressive model it would be `received` itself.
    """

    name = "received_final"
    final = True
