"""The session that is active while a model runs: it receives every attention call and keeps what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import torch

from floatlens.observe.call import Call, Layout
from floatlens.observe.exact import Matrices, exactly
from floatlens.observe.registry import DEFAULT, MATRICES, NEEDS_GOLD, statistic
from floatlens.observe.statistic import Statistic
from floatlens.observe.tile import TILE, tiles
from floatlens.observe.workspace import Workspace

Implementation = Literal["stream", "exact"]


class Session:
    """Statistics of the layers that were asked for, gathered over one forward pass after another.

    After a pass `results[name][layer]` is (B, *dims). `rows` limits observation to the first rows of the batch: guidance
    runs a second copy of it.
    """

    def __init__(
        self,
        statistics: Sequence[str] = DEFAULT,
        *,
        layout: Layout | None = None,
        layers: Collection[int] | None = None,
        matrix_layers: Collection[int] | None = None,
        implementation: Implementation = "stream",
        tile: int = TILE,
        rows: int | None = None,
    ) -> None:
        self.statistics = {name: statistic(name) for name in statistics}
        self.layout = layout
        self.layers, self.matrix_layers = layers, matrix_layers if matrix_layers is not None else layers
        self.implementation, self.tile, self.rows = implementation, tile, rows
        self.observers: dict[int, dict[str, Statistic]] = {}
        self.matrices: dict[int, Matrices] = {}
        self.length: dict[int, int] = {}
        self.results: dict[str, dict[int, torch.Tensor]] = {}
        self.paused = False
        self.space = Workspace()
        self.begin()

    def begin(self) -> None:
        """A forward pass is about to start."""
        self.results = {name: {} for name in self.statistics}
        self.calls = 0

    def wanted(self, layer: int) -> list[str]:
        """The statistics to take at a layer."""
        without = NEEDS_GOLD if self.layout is None or not self.layout.has_gold else ()
        return [
            name
            for name in self.statistics
            if name not in without
            and ((chosen := self.matrix_layers if name in MATRICES else self.layers) is None or layer in chosen)
        ]

    @torch.no_grad()
    def see(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        mask: torch.Tensor | None,
        causal: bool,
        softcap: float | None = None,
        bias: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Take the statistics of one call: query (B, H, Q, D), key and value (B, K, T, D)."""
        names = self.wanted(layer)
        if self.paused or not names:
            return
        rows = self.rows or query.shape[0]
        q, k, v = query[:rows], key[:rows], value[:rows]
        if mask is not None and mask.shape[0] > 1:
            mask = mask[:rows]
        if mask is not None:
            mask = mask[..., -k.shape[2] :]
        # Fewer queries than keys, or one query after a longer call, extend a cache; its length grows by the queries.
        before = self.length.get(layer, 0) if q.shape[2] < k.shape[2] or q.shape[2] == 1 else 0
        length = max(before + q.shape[2], k.shape[2])
        self.length[layer] = length
        layout = self.layout or plain_layout(rows, length, q.device)
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        call = Call(layer, q, k, v, layout, length, scale, mask, causal, softcap, bias, sinks)
        if self.implementation == "exact":
            matrices = self.matrices.setdefault(layer, Matrices())
            matrices.see(call)
            for name in names:
                self.results[name][layer] = exactly(name)(matrices, call)
            return
        observers = self.observers.setdefault(layer, {name: self.statistics[name]() for name in names})
        for observer in observers.values():
            observer.start(call)
        tiled = [observer for observer in observers.values() if observer.tiled]
        pooled = any(observer.pooled for observer in observers.values())
        if tiled or pooled:
            for tile in tiles(call, self.tile, self.space):
                if pooled:
                    call.pool(tile.weights_BHQT, tile.start, tile.end)
                for observer in tiled:
                    observer.tile(tile)
        for name, observer in observers.items():
            self.results[name][layer] = observer.result(call)


def plain_layout(rows: int, length: int, device: torch.device) -> Layout:
    """A layout for a model that is observed on its own: no padding, no regions."""
    none = torch.zeros(rows, length, dtype=torch.bool, device=device)
    region = torch.zeros(rows, length, dtype=torch.long, device=device)
    return Layout(None, region, [["other"]] * rows, none, none)
