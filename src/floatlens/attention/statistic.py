"""The base class of statistics: a statistic receives attention weights tile by tile, and keeps a small result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.tile import Tile


class Statistic:
    """Base of all statistics. A subclass sets `name` and `dims`, and overrides the methods that it needs.

    Shapes: B batch, H heads, K key/value heads, Q queries of the call, T keys.

    There is one object per layer. `start` is called for every attention call, then `tile` for some of its queries at a
    time, then `result`. A bidirectional model computes all rows at every step: `call.fresh` is True, and the object starts
    from zero. A causal model with a cache computes its prompt first (fresh) and then one row per step (not fresh): a mean
    over all queries so far is a running sum divided by a running count, so it has the same meaning for both.

    name      name under which it is recorded
    dims      dims of the result after step and layer: any of "head", "kv_head", "position", "query", "key", "dim",
              "region", "region_to", or a custom name
    tiled     False: `tile` is not called
    pooled    True: `result` reads `call.pooled_BHRT` or `call.spread_BH`
    quantities  functions of a call, each (B, ...), that `start` and `result` read by `call.once`; they need nothing else of
              its queries, keys and values, which then need not be kept. None: they may read everything
    by_row    True: rows of the batch are independent, so several layers may be passed as one call
    final     True: computed over final rows, not over the rows of the step
    compares  True: compares a step with the previous one through `call.memory`, so no step may be skipped
    hidden    True: a `HiddenStatistic`, which receives the states between layers instead of attention
    whole     True: integers such as token ids, which float16 cannot hold; always stored as float32
    coords    labels of a custom dim
    exact     optional static method (matrices, call) -> result: the definition from `ExactMatrices`, used by
              implementation="exact" and by tests
    """

    name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]]
    tiled: ClassVar[bool] = True
    pooled: ClassVar[bool] = False
    quantities: ClassVar[tuple[Callable[[Call], torch.Tensor], ...] | None] = None
    by_row: ClassVar[bool] = False
    final: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    hidden: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    coords: ClassVar[Mapping[str, Sequence[int]]] = {}

    def start(self, call: Call) -> None:
        """Prepare for a call; forget earlier rows if `call.fresh`."""

    def tile(self, tile: Tile) -> None:
        """Add the weights of some queries: `tile.weights_BHQT`, 0 in rows of padding. The next tile overwrites them."""

    def result(self, call: Call) -> torch.Tensor:
        """The value after this call: (B, *dims)."""
        raise NotImplementedError


class RunningSum:
    """A sum over queries that grows with the sequence along its last dim.

    >>> total = RunningSum()
    >>> total.add(torch.ones(1, 2)); total.add(torch.ones(1, 3)); total.value
    tensor([[2., 2., 1.]])
    """

    def __init__(self) -> None:
        self.value: torch.Tensor = torch.zeros(0)

    def reset(self) -> None:
        self.value = torch.zeros(0)

    def add(self, part: torch.Tensor, first: int = 0) -> None:
        """Add `part` to the last dim, starting at position `first`."""
        length = first + part.shape[-1]
        if self.value.numel() == 0 and first == 0:
            self.value = part.clone()
            return
        if self.value.numel() == 0:
            self.value = part.new_zeros((*part.shape[:-1], length))
        elif self.value.shape[-1] < length:
            self.value = torch.nn.functional.pad(self.value, (0, length - self.value.shape[-1]))
        self.value[..., first:length] += part
