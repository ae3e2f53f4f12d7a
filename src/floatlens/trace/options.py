"""What is recorded of a run: validation of `options.Recording`, and the session that observes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from floatlens.attention.call import PositionLayout
from floatlens.attention.session import IMPLEMENTATIONS, Session
from floatlens.attention.statistic import MATRICES, STATISTICS, expand
from floatlens.errors import FloatLensError
from floatlens.options import Recording


def check_recording(recording: Recording, shape: Mapping[str, int | None], step_count: int) -> None:
    """Raise an error for statistics, layers, heads and steps that do not exist; needs no weights."""
    if recording.implementation not in IMPLEMENTATIONS:
        choices = ", ".join(IMPLEMENTATIONS)
        raise FloatLensError(f"implementation {recording.implementation!r} is not known; use one of {choices}")
    unknown = [name for name in recording.matrices if name not in MATRICES]
    if unknown:
        raise FloatLensError(f"matrix {unknown[0]!r} is not known; use some of {', '.join(MATRICES)}")
    for name in expand(recording.record):
        STATISTICS[name]
    check_range(recording.layers, shape["layers"], "layer")
    check_range(recording.matrix_layers, shape["layers"], "layer")
    check_range(recording.heads, shape["heads"], "head")
    check_range(recording.record_steps, step_count, "step")


def make_session(recording: Recording, layout: PositionLayout, rows: int) -> Session:
    """A session that observes everything that is kept or shown."""
    return Session(
        [*dict.fromkeys((*expand(recording.record), *recording.matrices, *recording.show))],
        layout=layout,
        layers=recording.layers,
        matrix_layers=recording.matrix_layers,
        implementation=recording.implementation,  # type: ignore[arg-type]
        rows=rows,
    )


def shown_only(recording: Recording) -> set[str]:
    """Names of statistics that are shown but not kept."""
    return set(recording.show) - {*expand(recording.record), *recording.matrices}


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
