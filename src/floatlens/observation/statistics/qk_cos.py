"""QK geometry: the column mean of the cosine between query and key."""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.column_mean import ColumnMean, visible_sum
from floatlens.observation.registry import register_statistic
from floatlens.observation.statistics.qk import score_sums


@register_statistic
class QKCos(ColumnMean):
    """Mean over queries of cos(q, k_j); the cosine with a zero vector counts as 0."""

    name = "qk_cos"

    def query_sum(self, call: Call) -> torch.Tensor:
        if call.same_for_all_queries and call.real_BQ is None:  # the sum of unit vectors, without writing them out
            return torch.matmul(inverse(call.q_norm).transpose(2, 3), call.q)
        return visible_sum(call, call.q * inverse(call.q_norm))

    def key_part(self, call: Call) -> torch.Tensor:
        return call.k

    def part(self, call: Call) -> torch.Tensor:
        if call.Q > 1:
            return super().part(call)
        # A single query: its scores divided by both norms, without reading the keys again.
        score_BHT, groups = call.once(score_sums), call.H // call.K
        return score_BHT * inverse(call.q_norm[..., 0]) * inverse(call.k_norm[..., 0]).repeat_interleave(groups, 1)

    def key_factor(self, call: Call) -> torch.Tensor:
        return inverse(call.k_norm[..., 0])


def inverse(norm: torch.Tensor) -> torch.Tensor:
    """1 / norm, and 0 where the norm is 0.

    >>> inverse(torch.tensor([2.0, 0.0]))
    tensor([0.5000, 0.0000])
    """
    return torch.where(norm > 0, 1 / norm, 0.0)
