"""QK geometry: the column mean of the product of norms |q||k|."""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.column_mean import ColumnMean, visible_sum
from floatlens.observation.registry import register_statistic


@register_statistic
class QKNorm(ColumnMean):
    """Mean over queries of |q||k_j|."""

    name = "qk_norm"

    def query_sum(self, call: Call) -> torch.Tensor:
        return visible_sum(call, call.q_norm)

    def key_part(self, call: Call) -> torch.Tensor:
        return call.k_norm
