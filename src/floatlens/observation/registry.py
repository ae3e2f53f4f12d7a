"""The statistics by name, and those that a trace records by default."""

from __future__ import annotations

from typing import TypeVar

from floatlens.errors import FloatLensError
from floatlens.observation.statistic import Statistic
from floatlens.registry import Registry

STATISTICS: Registry[type[Statistic]] = Registry("statistic", "floatlens.observation.statistics")
DEFAULT = (
    "received", "received_final", "received_writing", "entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow",
    "evidence", "query_mass",
)  # fmt: skip
NEEDS_GOLD = ("evidence", "query_mass")
MATRICES = ("attention", "attention_mean", "queries", "keys")

Class = TypeVar("Class", bound=type[Statistic])


def register_statistic(kind: Class) -> Class:
    """Register a subclass of `Statistic` under its `name`, as a class decorator; it can then be recorded by that name."""
    for attribute in ("name", "dims"):
        if not hasattr(kind, attribute):
            raise FloatLensError(f"statistic {kind.__name__} has no {attribute!r}; see docs/statistics.md")
    STATISTICS.add(kind.name, kind)
    return kind
