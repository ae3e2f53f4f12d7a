"""Options of recording, and their validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from floatlens.attention.call import PositionLayout
from floatlens.attention.registry import DEFAULT, MATRICES, STATISTICS, expand
from floatlens.attention.session import IMPLEMENTATIONS, Implementation, Session
from floatlens.errors import FloatLensError


@dataclass(frozen=True)
class RecordOptions:
    """What to record of a run, and what to show while it runs.

    Parameters
    ----------
    record
        Names of statistics or of groups of statistics ("default", "cache_drift", "locality", "massive"); by default all
        that are cheap.
    layers, heads, record_steps
        Layers, heads and steps to keep; None keeps all.
    matrices
        Any of "attention", "attention_mean", "queries", "keys".
    matrix_layers
        Layers whose matrices are kept; by default `layers`.
    show
        Statistics or matrices that are shown at each step without being kept in the trace.
    implementation
        How attention is observed: "fused" (default), "stream", "exact" or "kernel"; see `Session`.
    """

    record: Sequence[str] = DEFAULT
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None
    record_steps: Collection[int] | None = None
    matrices: Sequence[str] = ()
    matrix_layers: Collection[int] | None = None
    show: Sequence[str] = ()
    implementation: Implementation = "fused"

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", expand(self.record))

    def check(self, shape: Mapping[str, int | None], step_count: int) -> None:
        """Raise an error for statistics, layers, heads and steps that do not exist; needs no weights."""
        if self.implementation not in IMPLEMENTATIONS:
            choices = ", ".join(IMPLEMENTATIONS)
            raise FloatLensError(f"implementation {self.implementation!r} is not known; use one of {choices}")
        unknown = [name for name in self.matrices if name not in MATRICES]
        if unknown:
            raise FloatLensError(f"matrix {unknown[0]!r} is not known; use some of {', '.join(MATRICES)}")
        for name in self.record:
            STATISTICS[name]
        check_range(self.layers, shape["layers"], "layer")
        check_range(self.matrix_layers, shape["layers"], "layer")
        check_range(self.heads, shape["heads"], "head")
        check_range(self.record_steps, step_count, "step")

    def session(self, layout: PositionLayout, rows: int) -> Session:
        """A session that observes everything that is kept or shown."""
        return Session(
            [*dict.fromkeys((*self.record, *self.matrices, *self.show))],
            layout=layout,
            layers=self.layers,
            matrix_layers=self.matrix_layers,
            implementation=self.implementation,
            rows=rows,
        )

    @property
    def shown_only(self) -> set[str]:
        """Names of statistics that are shown but not kept."""
        return set(self.show) - {*self.record, *self.matrices}


def check_range(chosen: Collection[int] | None, count: int | None, what: str) -> None:
    """Raise an error for layers, heads or steps that do not exist; `count` is None if their number is not known.

    >>> check_range([3], 3, "layer")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: layer 3 does not exist; there are 3, from 0 to 2
    """
    if chosen is None:
        return
    last = "the last one" if count is None else count - 1
    if not chosen:
        raise FloatLensError(f"no {what} was selected; pass at least one of 0 to {last}")
    for number in chosen:
        if number < 0 or (count is not None and number >= count):
            known = "" if count is None else f"there are {count}, "
            raise FloatLensError(f"{what} {number} does not exist; {known}from 0 to {last}")
