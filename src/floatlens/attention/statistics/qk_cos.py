"""QK geometry: the column mean of the cosine between query and key."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.column_mean import COS, ColumnMean, score_sums
from floatlens.attention.registry import register_statistic


@register_statistic
class QKCos(ColumnMean):
    """Mean over queries of cos(q, k_j); the cosine with a zero vector counts as 0."""

    name = "qk_cos"
    quantities = (score_sums,)

    def part(self, call: Call) -> torch.Tensor:
        return call.once(score_sums)[:, :, COS]
