"""Attention in tiles of queries: never more than a few megabytes at once, however long the sequence.

Softmax over a tile's rows is exact, since a tile holds all keys that its queries may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.observe.call import Call
from floatlens.observe.workspace import Workspace

# Numbers in a tile: a megabyte of float32, which stays in a core's cache (measured: benchmarks/trace.py).
TILE = 1 << 18


@dataclass(frozen=True)
class Tile:
    """Queries start..end of a call, and the keys that they may see: T here is the number of those keys.

    weights_BHQT  softmax of the scores, 0 in rows of padding
    scores_BHQT   what the softmax saw, -inf where a key is masked

    Both are written over by the next tile: keep sums of them, or copies.
    """

    call: Call
    start: int
    end: int
    scores_BHQT: torch.Tensor
    weights_BHQT: torch.Tensor
    space: Workspace

    @property
    def T(self) -> int:
        return self.scores_BHQT.shape[-1]

    @property
    def real_BQ(self) -> torch.Tensor | None:
        """Queries of the tile that are not padding; None when all are real."""
        real = self.call.real_BQ
        return None if real is None else real[:, self.start : self.end]

    def scratch(self) -> torch.Tensor:
        """A tensor of the tile's shape to write into; it lasts as long as the tile."""
        return self.space.take("scratch", tuple(self.scores_BHQT.shape), self.scores_BHQT.device)


def tiles(call: Call, size: int, space: Workspace) -> Iterator[Tile]:
    """The tiles of a call, in order of the queries; `size` bounds the numbers in a tile."""
    rows = max(1, size // (call.B * call.H * call.T))
    for start in range(0, call.Q, rows):
        end = min(call.Q, start + rows)
        keys = end if call.causal else call.T
        scores_BHQT = call.scores(start, end, keys, space)
        weights_BHQT = softmax(call, scores_BHQT, start, end, space)
        yield Tile(call, start, end, scores_BHQT, weights_BHQT, space)


def softmax(
    call: Call, scores_BHQT: torch.Tensor, start: int, end: int, space: Workspace | None = None
) -> torch.Tensor:
    """Attention weights of rows start..end; rows of padding become 0, and a learned sink takes its share away."""
    if call.sinks_H is not None:
        sinks = call.sinks_H.float().view(1, -1, 1, 1).expand(*scores_BHQT.shape[:3], 1)
        weights = torch.cat([scores_BHQT, sinks], -1).softmax(-1)[..., :-1]
    elif space is not None:
        weights = space.take("weights", tuple(scores_BHQT.shape), scores_BHQT.device)
        torch.softmax(scores_BHQT, -1, out=weights)
    else:
        weights = scores_BHQT.softmax(-1)
    if call.real_BQ is not None:
        padding = ~call.real_BQ[:, None, start:end, None]
        weights = weights.masked_fill_(padding, 0.0)
    return weights
