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


variant(AttentionMatrix, "attention_mean", dims=("query", "key"))


def register_vectors(name: str, head: str, of_call: Callable[[Call], torch.Tensor]) -> None:
    """Register vectors of the call, after RoPE. With a cache, they are those of the step's own positions."""
    methods = {"result": lambda self, call: of_call(call), "exact": staticmethod(lambda m, call: of_call(call))}
    variant(Statistic, name, dims=(head, "query", "dim"), __module__=__name__, **methods)


register_vectors("queries", "head", lambda call: call.q_BHQD.float())
register_vectors("keys", "kv_head", lambda call: call.k_BKTD[:, :, call.query_keys].float())
