"""Norm of the value vector of each position; attention sinks are known to have small ones."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import RunningSum, Statistic


def value_norms(call: Call) -> torch.Tensor:
    """Norms of the values of all keys, or of the new positions only if they extend a cache (B, K, positions)."""
    values_BKTD = call.v_BKTD if call.fresh else call.v_BKTD[:, :, -call.Q :]
    return values_BKTD.float().norm(dim=-1)


@register_statistic
class ValueNorm(Statistic):
    """|v_j| per key/value head. With a cache only new positions are computed, because cached values do not change."""

    name = "value_norm"
    dims = ("kv_head", "position")
    tiled, by_row = False, True
    quantities = (value_norms,)

    def __init__(self) -> None:
        self.norm_BKT = RunningSum()

    def start(self, call: Call) -> None:
        if call.fresh:
            self.norm_BKT.reset()
        self.norm_BKT.add(call.once(value_norms), call.first_key if call.fresh else call.first_query)

    def result(self, call: Call) -> torch.Tensor:
        return self.norm_BKT.value
