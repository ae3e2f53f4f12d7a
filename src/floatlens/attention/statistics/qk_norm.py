"""QK geometry: the column mean of the product of norms |q||k|."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.column_mean import ColumnMean, norm_sums
from floatlens.attention.registry import register_statistic


@register_statistic
class QKNorm(ColumnMean):
    """Mean over queries of |q||k_j|."""

    name = "qk_norm"
    quantities = (norm_sums,)

    def part(self, call: Call) -> torch.Tensor:
        return call.once(norm_sums)
