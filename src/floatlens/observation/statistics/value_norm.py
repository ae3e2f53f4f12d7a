"""Norm of the value vector of each position; attention sinks are known to have small ones."""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.registry import register_statistic
from floatlens.observation.statistic import RunningSum, Statistic


@register_statistic
class ValueNorm(Statistic):
    """|v_j| per key/value head. With a cache only new positions are computed, because cached values do not change."""

    name = "value_norm"
    dims = ("kv_head", "position")
    tiled, by_row = False, True

    def __init__(self) -> None:
        self.norm_BKT = RunningSum()

    def start(self, call: Call) -> None:
        if call.fresh:
            self.norm_BKT.reset()
            self.norm_BKT.add(call.v_BKTD.float().norm(dim=-1), call.first_key)
        else:
            self.norm_BKT.add(call.v_BKTD[:, :, -call.Q :].float().norm(dim=-1), call.first_query)

    def result(self, call: Call) -> torch.Tensor:
        return self.norm_BKT.value
