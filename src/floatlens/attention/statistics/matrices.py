"""Full matrices, for the requested layers, heads and steps: attention, queries, keys.

These are the only records that grow with the square of the length; they are never recorded by default.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, register_statistic
from floatlens.attention.stream import Tile


@register_statistic
class AttentionMatrix(Statistic):
    """Attention weights per head. With a cache, the rows that the step computed; NaN for rows of earlier steps."""

    name = "attention"
    dims: ClassVar[tuple[str, ...]] = ("head", "query", "key")

    def start(self, call: Call) -> None:
        self.rows_BHQT = torch.zeros(call.B, call.H, call.Q, call.length, device=call.q_BHQD.device)

    def tile(self, tile: Tile) -> None:
        first = tile.call.first_key
        self.rows_BHQT[:, :, tile.start : tile.end, first : first + tile.T] = tile.weights_BHQT

    def result(self, call: Call) -> torch.Tensor:
        return self.rows_BHQT

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return torch.where(m.real_rows(call) > 0, m.weights_BHQT, 0.0)[:, :, call.query_positions]


@register_statistic
class MeanAttentionMatrix(AttentionMatrix):
    """Attention weights, mean over heads."""

    name = "attention_mean"
    dims = ("query", "key")

    def start(self, call: Call) -> None:
        self.rows_BQT = torch.zeros(call.B, call.Q, call.length, device=call.q_BHQD.device)

    def tile(self, tile: Tile) -> None:
        first = tile.call.first_key
        self.rows_BQT[:, tile.start : tile.end, first : first + tile.T] = tile.weights_BHQT.mean(1)

    def result(self, call: Call) -> torch.Tensor:
        return self.rows_BQT

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return super().exact(m, call).mean(1)


@register_statistic
class Queries(Statistic):
    """Queries after RoPE. With a cache, those of the step's own positions."""

    name = "queries"
    dims = ("head", "query", "dim")

    def result(self, call: Call) -> torch.Tensor:
        return call.q_BHQD.float()

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return call.q_BHQD.float()


@register_statistic
class Keys(Statistic):
    """Keys after RoPE, before repetition over query heads. With a cache, those of the step's own positions."""

    name = "keys"
    dims = ("kv_head", "query", "dim")

    def result(self, call: Call) -> torch.Tensor:
        return call.k_BKTD[:, :, call.query_keys].float()

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return call.k_BKTD[:, :, call.query_keys].float()
