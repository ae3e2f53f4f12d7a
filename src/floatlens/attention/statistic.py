"""Statistics of attention: their base class, their names, and those that a trace records by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.stream import Tile
from floatlens.errors import FloatLensError, check_known
from floatlens.registry import Registry


class Statistic:
    """Base of all statistics. A subclass sets `name` and `dims`, and overrides the methods that it needs.

    Shapes: B batch, H heads, K key/value heads, Q queries of the call, T keys.

    There is one object per layer. `start` is called for every attention call, then `tile` for some of its queries at a
    time, if the statistic has that method, then `result`. A bidirectional model computes all rows at every step:
    `call.starts_over` is True, and the object starts from zero. A causal model with a cache computes its prompt first and
    then adds one row per step: a mean over all queries so far is a running sum divided by a running count, so it has the
    same meaning for both.

    name      name under which it is recorded
    dims      dims of the result after step and layer: any of "head", "kv_head", "position", "query", "key", "dim",
              "region", "region_to", or a custom name
    pooled    True: `result` reads `call.pooled_BHRT` or `call.spread_BH`
    quantities  functions of a call, each (B, ...), that `result` reads by `call.once`; it needs nothing else of queries,
              keys and values, so that several layers may be passed as one call, each with its own rows of the batch.
              None: the statistic reads all of a call, of a single layer
    final     True: computed over final rows, not over the rows of the step
    compares  True: compares a step with the previous one through `call.memory`, so no step may be skipped
    whole     True: integers such as token ids, which float16 cannot hold; always stored as float32
    coords    labels of a custom dim
    """

    name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]]
    pooled: ClassVar[bool] = False
    quantities: ClassVar[tuple[Callable[[Call], torch.Tensor], ...] | None] = None
    final: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    coords: ClassVar[Mapping[str, Sequence[int]]] = {}

    def start(self, call: Call) -> None:
        """Prepare for a call; forget earlier rows if `call.starts_over`."""

    def tile(self, tile: Tile) -> None:
        """Add the weights of some queries: `tile.weights_BHQT`, 0 in rows of padding. The next tile overwrites them."""

    def result(self, call: Call) -> torch.Tensor:
        """The value after this call: (B, *dims)."""
        raise NotImplementedError

    @classmethod
    def exact(cls, matrices: Any, call: Call) -> torch.Tensor:
        """The definition from the full matrices (`ExactMatrices`), for implementation="exact" and for tests."""
        raise FloatLensError(f"statistic {cls.name!r} has no exact definition; use implementation='stream'")

    def running(self, call: Call, part: torch.Tensor, first: int = 0, name: str = "sum") -> torch.Tensor:
        """Add the part of a call to a running sum, from position `first` of its last dim on, and return the sum."""
        sums, pad = self.__dict__.setdefault("_running", {}), torch.nn.functional.pad
        total = pad(part, (first, 0)) if first else part
        if not call.starts_over and (before := sums.get(name)) is not None:
            total = total + (pad(before, (0, more)) if (more := total.shape[-1] - before.shape[-1]) else before)
        sums[name] = total
        return total


MODULES = ("received", "geometry", "evidence", "locality", "change", "hidden_states", "matrices")
STATISTICS: Registry[type[Statistic]] = Registry("statistic", "floatlens.attention.statistics", MODULES)
DEFAULT = (
    "received", "received_final", "received_writing", "entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow",
    "evidence", "query_mass",
)  # fmt: skip
NEEDS_GOLD = ("evidence", "query_mass")
# Names of groups of statistics that are recorded on request.
GROUPS = {
    "default": DEFAULT,
    "cache_drift": ("key_change", "value_change", "hidden_change"),
    "locality": ("distance", "near", "near_uniform", "mask_attention"),
    "massive": ("hidden_norm", "massive_ratio", "massive_channel"),
}
MATRICES = ("attention", "attention_mean", "queries", "keys")

Class = TypeVar("Class", bound=type[Statistic])


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Names of statistics, with each group name replaced by its members.

    >>> expand(["received", "massive"])
    ('received', 'hidden_norm', 'massive_ratio', 'massive_channel')
    """
    for name in names:
        if name not in GROUPS:
            check_known("statistic", name, [*STATISTICS.names(), *GROUPS])
    return tuple(dict.fromkeys(member for name in names for member in GROUPS.get(name, (name,))))


def register_statistic(kind: Class) -> Class:
    """Register a subclass of `Statistic` under its `name`, as a class decorator; it can then be recorded by that name."""
    for attribute in ("name", "dims"):
        if not hasattr(kind, attribute):
            raise FloatLensError(f"statistic {kind.__name__} has no {attribute!r}; see docs/statistics.md")
    STATISTICS.add(kind.name, kind)
    return kind


def variant(base: type[Statistic], name: str, **attributes: Any) -> None:
    """Register a statistic that differs from `base` in class attributes alone."""
    register_statistic(type(name, (base,), {"name": name, "__module__": base.__module__, **attributes}))
