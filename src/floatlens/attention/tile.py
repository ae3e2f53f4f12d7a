"""Attention in tiles of some queries and all heads, for statistics that need individual weights.

Softmax over a tile's rows is exact, since a tile holds all keys that its queries may see.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from floatlens.attention.call import Call
from floatlens.attention.weights import WeightBlock

# Weights in a tile or block: one megabyte of float32, which stays in a core's cache (measured: benchmarks/trace.py).
TILE = 1 << 18


@dataclass(frozen=True)
class Tile:
    """Queries start..end of a call, and the keys that they may see: T here is the number of those keys.

    weights_BHQT  softmax of the scores, 0 in rows of padding; overwritten by the next tile: keep sums or copies
    """

    call: Call
    start: int
    end: int
    weights_BHQT: torch.Tensor

    @classmethod
    def of(cls, call: Call, block: WeightBlock) -> Tile:
        """Make a tile from a block that has all heads."""
        shape = (call.B, call.H, block.end - block.start, -1)
        return cls(call, block.start, block.end, block.weights_NQT.view(shape))

    @property
    def T(self) -> int:
        return self.weights_BHQT.shape[-1]

    @property
    def diagonal(self) -> int:
        """Offset of the diagonal: the own key of the tile's query i is key i + diagonal."""
        return self.call.query_keys.start + self.start

    @property
    def scores_BHQT(self) -> torch.Tensor:
        """The scores before the softmax, -inf where a key is masked; computed on demand."""
        return self.call.scores(self.start, self.end, self.T)

    @property
    def real_BQ(self) -> torch.Tensor | None:
        """Queries of the tile that are not padding; None when all are real."""
        real = self.call.real_BQ
        return None if real is None else real[:, self.start : self.end]


def writing_queries(call: Call) -> tuple[int, int]:
    """First and last (exclusive) of the call's queries that may write a token; an empty range at 0 if there are none."""
    first, end = call.layout.writing_span
    first, end = max(first - call.first_query, 0), min(end - call.first_query, call.Q)
    return (first, end) if first < end else (0, 0)


def attention_rows(call: Call, start: int, end: int) -> torch.Tensor:
    """Attention weights (B, H, end-start, T) of rows start..end (read-only); rows of padding are 0."""
    if (kept := call.rows(start, end)) is not None:
        return kept
    if call.implicit is None:
        return softmax_rows(call, call.scores(start, end), start, end)
    weights = call.implicit.weights(start, end)
    return weights if call.real_BQ is None else weights.masked_fill_(~call.real_BQ[:, None, start:end, None], 0.0)


def softmax_rows(call: Call, scores_BHQT: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Attention weights of rows start..end; rows of padding become 0, and the share of a learned sink is left out."""
    if call.sinks_H is not None:
        sinks = call.sinks_H.float().view(1, -1, 1, 1).expand(*scores_BHQT.shape[:3], 1)
        weights = torch.cat([scores_BHQT, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores_BHQT.softmax(-1)
    if call.real_BQ is not None:
        padding = ~call.real_BQ[:, None, start:end, None]
        weights = weights.masked_fill_(padding, 0.0)
    return weights
