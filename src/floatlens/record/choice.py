"""Record: what of a run goes into its trace, and what cannot go there because it does not exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.observation.call import Layout
from floatlens.observation.registry import DEFAULT, MATRICES, STATISTICS
from floatlens.observation.session import Implementation, Session


@dataclass(frozen=True)
class Record:
    """What to keep of a run, and what to show while it goes on; None keeps all.

    record: names of statistics; the default is all that need no matrix.
    layers, heads, record_steps: what to keep.
    matrices: any of "attention", "attention_mean", "queries", "keys", for `matrix_layers` (default: `layers`).
    show: statistics or matrices to be seen at each step without being kept in the trace.
    implementation: "stream" (tiles, the default) or "exact" (whole matrices, the oracle).
    """

    record: Sequence[str] = DEFAULT
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None
    record_steps: Collection[int] | None = None
    matrices: Sequence[str] = ()
    matrix_layers: Collection[int] | None = None
    show: Sequence[str] = ()
    implementation: Implementation = "stream"

    @classmethod
    def apart(cls, options: Mapping[str, Any]) -> tuple[Record, dict[str, Any]]:
        """What is to be recorded, and the options that are not about that.

        >>> Record.apart({"layers": [0], "steps": 8})[1]
        {'steps': 8}
        """
        ours = {field.name for field in fields(cls)} & options.keys()
        return cls(**{name: options[name] for name in ours}), {n: v for n, v in options.items() if n not in ours}

    def check(self, shape: Mapping[str, int | None], step_count: int) -> None:
        """Refuse to record what does not exist; no weight is needed for that."""
        if self.implementation not in ("stream", "exact"):
            raise FloatLensError(f"implementation {self.implementation!r} is not known; use stream or exact")
        unknown = [name for name in self.matrices if name not in MATRICES]
        if unknown:
            raise FloatLensError(f"matrix {unknown[0]!r} is not known; use some of {', '.join(MATRICES)}")
        for name in self.record:
            STATISTICS[name]
        within(self.layers, shape["layers"], "layer")
        within(self.matrix_layers, shape["layers"], "layer")
        within(self.heads, shape["heads"], "head")
        within(self.record_steps, step_count, "step")

    def session(self, layout: Layout, rows: int) -> Session:
        """The session that observes what is kept and what is shown."""
        return Session(
            [*dict.fromkeys((*self.record, *self.matrices, *self.show))],
            layout=layout,
            layers=self.layers,
            matrix_layers=self.matrix_layers,
            implementation=self.implementation,
            rows=rows,
        )

    @property
    def passing(self) -> set[str]:
        """What is shown and not kept."""
        return set(self.show) - {*self.record, *self.matrices}


def within(chosen: Collection[int] | None, count: int | None, what: str) -> None:
    """Refuse layers, heads or steps that do not exist.

    >>> within([3], 3, "layer")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: layer 3 does not exist; there are 3, from 0 to 2
    """
    if chosen is None or count is None:
        return
    if not chosen:
        raise FloatLensError(f"no {what} was chosen; name at least one of 0 to {count - 1}")
    for number in chosen:
        if not 0 <= number < count:
            raise FloatLensError(f"{what} {number} does not exist; there are {count}, from 0 to {count - 1}")
