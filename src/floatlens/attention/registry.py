"""The statistics by name, and those that a trace records by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from floatlens.attention.statistic import Statistic
from floatlens.errors import FloatLensError
from floatlens.registry import Registry

MODULES = (
    "cache_drift", "entropy", "evidence", "flow", "hidden_drift", "lens_token", "locality", "massive", "matrices",
    "qk", "qk_cos", "qk_norm", "query_mass", "received", "received_signed", "received_writing", "step_similarity",
    "value_norm",
)  # fmt: skip
STATISTICS: Registry[type[Statistic]] = Registry("statistic", "floatlens.attention.statistics", MODULES)
DEFAULT = (
    "received", "received_final", "received_writing", "entropy", "qk", "qk_norm", "qk_cos", "value_norm", "flow",
    "evidence", "query_mass",
)  # fmt: skip
NEEDS_GOLD = ("evidence", "query_mass")
# Names of groups of statistics that are recorded on request.
GROUPS = {
    "default": DEFAULT,
    "cache_drift": ("key_change", "key_cos", "value_change", "value_cos", "hidden_change", "hidden_cos"),
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
    return tuple(dict.fromkeys(member for name in names for member in GROUPS.get(name, (name,))))


def register_statistic(kind: Class) -> Class:
    """Register a subclass of `Statistic` under its `name`, as a class decorator; it can then be recorded by that name."""
    for attribute in ("name", "dims"):
        if not hasattr(kind, attribute):
            raise FloatLensError(f"statistic {kind.__name__} has no {attribute!r}; see docs/statistics.md")
    STATISTICS.add(kind.name, kind)
    return kind
