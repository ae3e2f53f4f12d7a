"""Locality: the distance of attention, and its share on near and distant masks (arXiv 2511.21338).

Distances are counted in positions. Each number is a mean over queries; with a cache, over all queries so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, variant
from floatlens.attention.stream import Tile

REACH = (0, 1, 2, 4, 8, 16, 32, 64)


def distances(call: Call, start: int, end: int, keys: int) -> torch.Tensor:
    """Number of positions between queries start..end of a call and its first keys (end-start, keys)."""
    device = call.device
    queries = torch.arange(call.first_query + start, call.first_query + end, device=device)
    return (queries[:, None] - torch.arange(call.first_key, call.first_key + keys, device=device)[None]).abs()


class MeanOverQueries(Statistic):
    """Mean over queries of what `of_tile` sums over a tile's queries; `counts` returns the number of queries per row."""

    dims: ClassVar[tuple[str, ...]] = ("head", "reach")
    coords: ClassVar[dict[str, tuple[int, ...]]] = {"reach": REACH}
    of_tile: ClassVar[Callable[[Tile], torch.Tensor]]
    counts: ClassVar[Callable[[Call], torch.Tensor]] = lambda call: call.queries_B

    def start(self, call: Call) -> None:
        self.sum = torch.zeros(())

    def tile(self, tile: Tile) -> None:
        self.sum = self.sum + type(self).of_tile(tile)

    def result(self, call: Call) -> torch.Tensor:
        total, count_B = self.running(call, self.sum), self.running(call, type(self).counts(call), name="count")
        return total / count_B.view(-1, *[1] * (total.ndim - 1))


def distance(tile: Tile) -> torch.Tensor:
    """Distance between query and key, weighted by attention."""
    away_QT = distances(tile.call, tile.start, tile.end, tile.T).float()
    return torch.einsum("bhqt,qt->bh", tile.weights_BHQT, away_QT)


def near(tile: Tile) -> torch.Tensor:
    """Share of attention within 0, 1, 2, 4, … positions of the query; within 0 is its own key."""
    return banded(tile.weights_BHQT, within(tile))


def near_uniform(tile: Tile) -> torch.Tensor:
    """`near` of uniform attention to all visible keys: the baseline that `near` is compared with."""
    return banded(uniform(tile), within(tile))


def mask_attention(tile: Tile) -> torch.Tensor:
    """Attention of masked positions on masks more than 0, 1, 2, 4, … positions away; NaN at a step without masks."""
    masked_BN, call = masked(tile.call), tile.call
    queries = masked_BN[:, call.query_positions][:, tile.start : tile.end, None]
    keys = masked_BN[:, None, call.first_key : call.first_key + tile.T]
    return banded(tile.weights_BHQT * (queries & keys)[:, None], 1 - within(tile))


def within(tile: Tile) -> torch.Tensor:
    """1.0 where a key lies within each reach of the query (Q, T, reach)."""
    away_QT = distances(tile.call, tile.start, tile.end, tile.T)
    return (away_QT[..., None] <= torch.tensor(REACH, device=away_QT.device)).float()


def banded(weights_BHQT: torch.Tensor, bands_QTR: torch.Tensor) -> torch.Tensor:
    """Weights inside each band, summed over the queries (B, H, reach)."""
    rows_QNT = weights_BHQT.flatten(0, 1).transpose(0, 1)
    return torch.bmm(rows_QNT, bands_QTR).sum(0).unflatten(0, weights_BHQT.shape[:2])


def uniform(tile: Tile) -> torch.Tensor:
    """Even attention to all keys that each query may see; rows of padding are 0."""
    shape, seen = tile.weights_BHQT.shape, tile.call.may_see(tile.start, tile.end)
    visible = torch.ones(shape, dtype=torch.bool, device=tile.weights_BHQT.device)
    visible = visible if seen is None else seen[..., : tile.T].expand(shape)
    if tile.real_BQ is not None:
        visible = visible & tile.real_BQ[:, None, :, None]
    return visible / visible.sum(-1, keepdim=True).clamp_min(1)


def masked(call: Call) -> torch.Tensor:
    """True at positions that hold the mask token and are not padding (B, length)."""
    if call.tokens_BT is None or call.layout.mask_id is None:
        return torch.zeros(call.B, call.length, dtype=torch.bool, device=call.device)
    masked_BT = call.tokens_BT[:, : call.length] == call.layout.mask_id
    real = call.layout.real_BN
    return masked_BT if real is None else masked_BT & real[:, : call.length]


def exact_distance(m: ExactMatrices, call: Call) -> torch.Tensor:
    rows = m.real_rows(call)
    away = (torch.arange(call.length)[:, None] - torch.arange(call.length)[None]).abs()
    return torch.where(rows > 0, m.weights_BHQT * away, 0.0).sum((-1, -2)) / rows.sum((-1, -2))


def exact_near(m: ExactMatrices, call: Call, weights_BHQT: torch.Tensor | None = None) -> torch.Tensor:
    """Share of the weights within each reach, one reach and one diagonal after another."""
    rows = m.real_rows(call)
    shown = torch.where(rows > 0, m.weights_BHQT if weights_BHQT is None else weights_BHQT, 0.0)
    by_diagonal = {d: shown.diagonal(d, -2, -1).sum(-1) for d in range(-call.length + 1, call.length)}
    parts = [sum(value for d, value in by_diagonal.items() if abs(d) <= reach) for reach in REACH]
    return torch.stack(parts, -1) / rows.sum((-1, -2))[..., None]  # type: ignore[arg-type]


def exact_near_uniform(m: ExactMatrices, call: Call) -> torch.Tensor:
    visible = m.visible_BHQT.float()
    return exact_near(m, call, visible / visible.sum(-1, keepdim=True).clamp_min(1))


def exact_mask_attention(m: ExactMatrices, call: Call) -> torch.Tensor:
    out = torch.full((call.B, call.H, len(REACH)), torch.nan)
    masked_BN = masked(call)
    for row in range(call.B):
        masks = masked_BN[row].nonzero()[:, 0].tolist()
        queries = [q for q in masks if bool(m.seen_Q[q])]
        for at, reach in enumerate(REACH):
            far = [m.weights_BHQT[row, :, q, k] for q in queries for k in masks if abs(q - k) > reach]
            if queries:
                out[row, :, at] = sum(far, torch.zeros(call.H)) / len(queries)
    return out


variant(MeanOverQueries, "distance", dims=("head",), coords={}, of_tile=distance, exact=staticmethod(exact_distance))
variant(MeanOverQueries, "near", of_tile=near, exact=staticmethod(exact_near))
variant(MeanOverQueries, "near_uniform", of_tile=near_uniform, exact=staticmethod(exact_near_uniform))
variant(
    MeanOverQueries,
    "mask_attention",
    of_tile=mask_attention,
    counts=lambda call: masked(call)[:, call.query_positions].sum(1).float(),
    exact=staticmethod(exact_mask_attention),
)
