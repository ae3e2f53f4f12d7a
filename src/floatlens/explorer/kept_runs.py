"""What is kept of recent runs: attention matrices, so that requests about one token are answered without running again,
and traces that a page may save.

Matrices are the mean over heads, float16, written during the run. Memory is bounded: the oldest are dropped first, and a run
whose matrices need more than a quarter of it keeps every n-th step, with the smallest n that fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from threading import Lock
from typing import Any

import numpy as np
import torch

from floatlens.errors import FloatLensError

Array = np.ndarray[Any, Any]


class RunMatrices:
    """Attention of one run: one matrix (T, T) per kept step and layer; a cached run has one, to which each step adds rows.

    Keys that a query may not see are 0, as in the softmax.

    >>> kept = RunMatrices(steps=4, layers=[0], length=3, cached=False, room=40)
    >>> kept.every, kept.matrices_SLTT.nbytes     # 18 bytes per step: two of four fit
    (2, 36)
    """

    def __init__(self, *, steps: int, layers: list[int], length: int, cached: bool, room: int) -> None:
        self.layers, self.cached = layers, cached
        fitting = room // max(2 * len(layers) * length**2, 1)
        self.every = -(-steps // (1 if cached else fitting)) if fitting else 0  # steps per matrix
        count = -(-steps // self.every) if fitting else 0
        self.matrices_SLTT: Array = np.zeros((count, len(layers), length, length), np.float16)
        self.lengths: dict[int, int] = {}

    def add(self, step: int, mean_QT: Mapping[int, torch.Tensor]) -> None:
        """Store the rows of one forward pass by layer; its queries are the last positions of the sequence so far."""
        if not self.every or (not self.cached and step % self.every):
            return
        for index, layer in enumerate(self.layers):
            rows_QT = mean_QT[layer].detach().float().cpu().numpy()
            Q, T = rows_QT.shape
            self.matrices_SLTT[step // self.every, index, T - Q : T, :T] = rows_QT
        self.lengths[step] = T

    def of(self, step: int, layer: int | None, position: int, direction: str) -> list[float | None]:
        """Return what `position` attends to (`from`) or what attends to it (`to`); None where no position exists yet."""
        N = self.matrices_SLTT.shape[-1]
        if not self.every:
            raise FloatLensError(
                f"the attention of this run was not kept: {N} positions in {len(self.layers)} layers need too much memory"
            )
        if step not in self.lengths:
            kept = f"was not kept, to save memory; one step in every {self.every} is kept, starting with step 0"
            left_out = not self.cached and step % self.every
            raise FloatLensError(
                f"the attention of step {step} {kept}" if left_out else f"step {step} has not been run"
            )
        T = self.lengths[step]
        if position >= T or layer not in (None, *self.layers):
            raise FloatLensError(f"step {step} has {T} positions in {len(self.layers)} layers, counted from 0")
        matrix_LTT = self.matrices_SLTT[step // self.every, :, :T, :T]
        chosen_LTT = matrix_LTT if layer is None else matrix_LTT[[self.layers.index(layer)]]
        picked_LT = chosen_LTT[:, position, :] if direction == "from" else chosen_LTT[:, :, position]
        mean_T = picked_LT.astype(np.float32).mean(0)
        return [round(float(a), 6) for a in mean_T] + [None] * (N - T)


class Kept:
    """Matrices and traces by key, each of a page. The oldest are dropped when together they exceed `limit` bytes.

    The model thread adds, pages read; a page that disconnects drops its own.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.lock = limit, Lock()
        self.values: dict[Hashable, tuple[Hashable, int, Any]] = {}  # page, bytes and value

    def add(self, page: Hashable, key: Hashable, value: Any, size: int) -> bool:
        """Keep a value, unless it alone is too large."""
        if size > self.limit:
            return False
        with self.lock:
            self.values.pop(key, None)
            self.values[key] = page, size, value
            while sum(each for _, each, _ in self.values.values()) > self.limit:
                del self.values[next(iter(self.values))]
        return True

    def get(self, key: Hashable) -> Any:
        with self.lock:
            if key not in self.values:
                raise FloatLensError("this run is no longer kept, or it has not begun; run it again")
            return self.values[key][2]

    def drop(self, page: Hashable) -> None:
        """Drop all values of a page."""
        with self.lock:
            self.values = {key: kept for key, kept in self.values.items() if kept[0] != page}
