"""QK geometry: the column mean of the score q·k, before scaling."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.column_mean import SCORE, ColumnMean, score_sums
from floatlens.attention.registry import register_statistic


@register_statistic
class QK(ColumnMean):
    """Mean over queries of q·k_j, post-RoPE and unscaled."""

    name = "qk"
    quantities = (score_sums,)

    def part(self, call: Call) -> torch.Tensor:
        return call.once(score_sums)[:, :, SCORE]
