"""Full matrices, for the requested layers, heads and steps: attention, queries, keys.

These are the only records that grow with the square of the length; they are never recorded by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, register_statistic, variant
from floatlens.attention.stream import Tile


@register_statistic
class AttentionMatrix(Statistic):
    """Attention weights. With a cache, the rows that the step computed; NaN for rows of earlier steps."""

    name = "attention"
    dims: ClassVar[tuple[str, ...]] = ("head", "query", "key")

    def start(self, call: Call) -> None:
        heads = (call.H,) if "head" in self.dims else ()
        self.rows = torch.zeros(call.B, *heads, call.Q, call.length, device=call.device)

    def tile(self, tile: Tile) -> None:
        first, weights = tile.call.first_key, tile.weights_BHQT
        weights = weights if "head" in self.dims else weights.mean(1)
        self.rows[..., tile.start : tile.end, first : first + tile.T] = weights

    def result(self, call: Call) -> torch.Tensor:
        return self.rows

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        rows = torch.where(m.real_rows(call) > 0, m.weights_BHQT, 0.0)[:, :, call.query_positions]
        return rows if "head" in cls.dims else rows.mean(1)


class Vectors(Statistic):
    """Vectors of the call, after RoPE. With a cache, those of the step's own positions."""

    of_call: ClassVar[Callable[[Call], torch.Tensor]]

    def result(self, call: Call) -> torch.Tensor:
        return type(self).of_call(call)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return cls.of_call(call)


variant(AttentionMatrix, "attention_mean", dims=("query", "key"))
variant(Vectors, "queries", dims=("head", "query", "dim"), of_call=lambda call: call.q_BHQD.float())
variant(
    Vectors, "keys", dims=("kv_head", "query", "dim"), of_call=lambda call: call.k_BKTD[:, :, call.query_keys].float()
)  # fmt: skip
