"""Locality: the distance of attention, and its share on near and distant masks (arXiv 2511.21338).

Distances are counted in positions. Each number is a mean over queries; with a cache, over all queries so far.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, register_statistic
from floatlens.attention.stream import Tile

REACH = (0, 1, 2, 4, 8, 16, 32, 64)


def distances(call: Call, start: int, end: int, keys: int) -> torch.Tensor:
    """Number of positions between queries start..end of a call and its first keys (end-start, keys)."""
    device = call.q_BHQD.device
    queries = torch.arange(call.first_query + start, call.first_query + end, device=device)
    return (queries[:, None] - torch.arange(call.first_key, call.first_key + keys, device=device)[None]).abs()


class MeanOverQueries(Statistic):
    """Mean over queries of one or more numbers; rows that extend a cache are added to the earlier ones."""

    def __init__(self) -> None:
        self.sum = torch.zeros(0)
        self.count_B = torch.zeros(0)

    def counted(self, call: Call) -> torch.Tensor:
        """Number of queries per row in the mean."""
        return call.queries_B

    def start(self, call: Call) -> None:
        if call.starts_over or not self.sum.numel():
            sizes = [len(REACH)] if "reach" in self.dims else []
            self.sum = torch.zeros(call.B, call.H, *sizes, device=call.q_BHQD.device)
            self.count_B = torch.zeros(call.B, device=call.q_BHQD.device)
        self.count_B = self.count_B + self.counted(call)

    def result(self, call: Call) -> torch.Tensor:
        return self.sum / self.count_B.view(-1, *[1] * (self.sum.ndim - 1))


@register_statistic
class Distance(MeanOverQueries):
    """Distance between query and key, weighted by attention."""

    name = "distance"
    dims: ClassVar[tuple[str, ...]] = ("head",)

    def tile(self, tile: Tile) -> None:
        away_QT = distances(tile.call, tile.start, tile.end, tile.T).float()
        self.sum += torch.einsum("bhqt,qt->bh", tile.weights_BHQT, away_QT)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        rows = m.real_rows(call)
        away = (torch.arange(call.length)[:, None] - torch.arange(call.length)[None]).abs()
        return torch.where(rows > 0, m.weights_BHQT * away, 0.0).sum((-1, -2)) / rows.sum((-1, -2))


@register_statistic
class Near(MeanOverQueries):
    """Share of attention within 0, 1, 2, 4, … positions of the query; within 0 is its own key."""

    name = "near"
    dims: ClassVar[tuple[str, ...]] = ("head", "reach")
    coords: ClassVar[dict[str, tuple[int, ...]]] = {"reach": REACH}

    def tile(self, tile: Tile) -> None:
        self.sum += banded(tile.weights_BHQT, within(tile))

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        return exact_near(m.weights_BHQT, m, call)


@register_statistic
class NearUniform(Near):
    """`near` of uniform attention to all visible keys: the baseline that `near` is compared with."""

    name = "near_uniform"

    def tile(self, tile: Tile) -> None:
        self.sum += banded(uniform(tile), within(tile))

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        visible = m.visible_BHQT.float()
        return exact_near(visible / visible.sum(-1, keepdim=True).clamp_min(1), m, call)


@register_statistic
class MaskAttention(Near):
    """Attention of masked positions on masks more than 0, 1, 2, 4, … positions away; NaN at a step without masks."""

    name = "mask_attention"

    def counted(self, call: Call) -> torch.Tensor:
        return masked(call)[:, call.query_positions].sum(1).float()

    def tile(self, tile: Tile) -> None:
        masked_BN, call = masked(tile.call), tile.call
        queries = masked_BN[:, call.query_positions][:, tile.start : tile.end, None]
        keys = masked_BN[:, None, call.first_key : call.first_key + tile.T]
        self.sum += banded(tile.weights_BHQT * (queries & keys)[:, None], 1 - within(tile))

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        out = torch.full((call.B, call.H, len(REACH)), torch.nan)
        masked_BN = masked(call)
        for row in range(call.B):
            positions = [p for p in range(call.length) if bool(masked_BN[row, p]) and bool(m.seen_Q[p])]
            for at, reach in enumerate(REACH):
                far = [
                    (q, k) for q in positions for k in range(call.length) if masked_BN[row, k] and abs(q - k) > reach
                ]
                total = sum((m.weights_BHQT[row, :, q, k] for q, k in far), torch.zeros(call.H))
                out[row, :, at] = total / len(positions) if positions else torch.nan
        return out


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
        return torch.zeros(call.B, call.length, dtype=torch.bool, device=call.q_BHQD.device)
    found = call.tokens_BT[:, : call.length] == call.layout.mask_id
    real = call.layout.real_BN
    return found if real is None else found & real[:, : call.length]


def exact_near(weights_BHQT: torch.Tensor, m: ExactMatrices, call: Call) -> torch.Tensor:
    """Share of the weights within each reach, one reach and one diagonal after another."""
    rows = m.real_rows(call)
    shown = torch.where(rows > 0, weights_BHQT, 0.0)
    by_diagonal = {d: shown.diagonal(d, -2, -1).sum(-1) for d in range(-call.length + 1, call.length)}
    parts = [sum(value for d, value in by_diagonal.items() if abs(d) <= reach) for reach in REACH]
    return torch.stack(parts, -1) / rows.sum((-1, -2))[..., None]  # type: ignore[arg-type]
