"""The session that is active while a model runs: it receives every attention call and keeps what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Literal

import torch

from floatlens.observation.blocks import passes
from floatlens.observation.call import Call, Layout
from floatlens.observation.exact import Matrices, exactly
from floatlens.observation.group import ROOM, Group, size
from floatlens.observation.registry import DEFAULT, MATRICES, NEEDS_GOLD, statistic
from floatlens.observation.tile import TILE, Tile
from floatlens.observation.workspace import Workspace

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
        room: int = ROOM,
    ) -> None:
        self.statistics = {name: statistic(name) for name in statistics}
        self.layout = layout
        self.layers, self.matrix_layers = layers, matrix_layers if matrix_layers is not None else layers
        self.implementation, self.tile, self.rows = implementation, tile, rows
        self.matrices: dict[int, Matrices] = {}
        self.length: dict[int, int] = {}
        self.groups: dict[int, Group] = {}
        self.open: dict[Hashable, Group] = {}
        self.paused = False
        self.room = room
        self.space = Workspace()
        self.begin()

    def begin(self) -> None:
        """A forward pass is about to start."""
        self._finish()
        self._results: dict[str, dict[int, torch.Tensor]] = {name: {} for name in self.statistics}
        self.calls = 0

    @property
    def results(self) -> dict[str, dict[int, torch.Tensor]]:
        """What the last forward pass showed: by name and layer, (B, *dims)."""
        self._finish()
        return self._results

    def _finish(self) -> None:
        """Look at what waits; no layer joins its group any more."""
        for group in self.open.values():
            group.closed = True
            if group.waiting:
                self._look(group)
        self.open.clear()

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
        lse: torch.Tensor | None = None,
        kind: Hashable = None,
    ) -> None:
        """Take the statistics of one call: query (B, H, Q, D), key and value (B, K, T, D).

        `lse` (B, H, Q) is the log of each row's sum, where the kernel tells it. Layers of another `kind` are never looked
        at together: their windows may differ at a later step.
        """
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
        lse = None if lse is None else lse[:rows]
        call = Call((layer,), q, k, v, layout, length, scale, mask, causal, softcap, bias, sinks, lse)
        if self.implementation == "exact":
            matrices = self.matrices.setdefault(layer, Matrices())
            matrices.see(call)
            for name in names:
                self._results[name][layer] = exactly(name)(matrices, call)
            return
        if call.fresh or layer not in self.groups:
            self._join(call, names, kind)
        group = self.groups[layer]
        group.waiting[layer] = call
        if group.closed and len(group.waiting) == len(group.layers):
            self._look(group)

    def _join(self, call: Call, names: list[str], kind: Hashable) -> None:
        """Put a layer into the group that waits for calls like this one, or into a new one."""
        mask = None if call.mask is None else (call.mask.data_ptr(), call.mask.shape)
        shapes = tuple(x.shape for x in (call.q_BHQD, call.k_BKTD, call.v_BKTD))
        alike = (*shapes, call.scaling, call.causal, call.softcap, mask, call.q_BHQD.device, tuple(names), kind)
        group = self.open.get(alike)
        if group is None or group.size + size(call) > self.room:
            if group is not None:
                group.closed = True
                self._look(group)
            group = self.open[alike] = Group({name: self.statistics[name]() for name in names})
        group.layers.append(call.layer)
        group.size += size(call)
        by_row = all(self.statistics[name].by_row for name in names) and call.bias is None and call.sinks_H is None
        if not by_row or group.size > self.room:
            group.closed = True
            del self.open[alike]
        self.groups[call.layer] = group

    def _look(self, group: Group) -> None:
        """Take the statistics of the calls that wait in a group."""
        call, observers = group.together(self.space), group.observers
        for observer in observers.values():
            observer.start(call)
        tiled = [observer for observer in observers.values() if observer.tiled]
        if tiled or any(observer.pooled for observer in observers.values()):
            for block in passes(call, self.tile, self.space, whole=bool(tiled)):
                if tiled:
                    tile = Tile.of(call, block)
                    for observer in tiled:
                        observer.tile(tile)
        rows = call.B // len(call.layers)
        for name, observer in observers.items():
            value = observer.result(call)
            for place, layer in enumerate(call.layers):
                self._results[name][layer] = value[place * rows : (place + 1) * rows]


def plain_layout(rows: int, length: int, device: torch.device) -> Layout:
    """A layout for a model that is observed on its own: no padding, no regions."""
    none = torch.zeros(rows, length, dtype=torch.bool, device=device)
    region = torch.zeros(rows, length, dtype=torch.long, device=device)
    return Layout(None, region, [["other"]] * rows, none, none)
