"""QK geometry: the column mean of the score q·k, before scaling."""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.column_mean import ColumnMean, visible_sum
from floatlens.observation.registry import register_statistic


@register_statistic
class QK(ColumnMean):
    """Mean over queries of q·k_j, post-RoPE and unscaled."""

    name = "qk"

    def query_sum(self, call: Call) -> torch.Tensor:
        return visible_sum(call, call.q)

    def key_part(self, call: Call) -> torch.Tensor:
        return call.k

    def part(self, call: Call) -> torch.Tensor:
        return call.once(score_sums)


def score_sums(call: Call) -> torch.Tensor:
    """q·k, summed over the queries that may see each key (B, H, T)."""
    return ColumnMean.part(QK(), call)
