"""The findings by name. A new one is a file in this folder and a name in NAMES."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.findings.samples import Traces, is_measured, models_of
from floatlens.findings.verdict import Verdict

NAMES = ("drift", "absorption", "geometry", "tokens", "heads", "flow", "knowledge", "stress", "causes")


class Finding:
    """One result of the paper: its measurement, its figure and its claims.

    Calling it measures: `fl.drift(trace)` is `fl.drift.measure(trace)`. `views` are the figures it can draw; all but
    those in `maps` can be drawn from what `measure` returned as well as from traces. `reads` says what of a run it measures.
    """

    def __init__(
        self,
        name: str,
        *,
        paper: str,
        measure: Callable[..., Any],
        figure: Callable[..., Any],
        claims: Sequence[Callable[..., Verdict]],
        views: Sequence[str],
        maps: Sequence[str] = (),
        reads: Literal["traces", "answers"] = "traces",
    ) -> None:
        self.name = name
        self.paper = paper
        self.measure = measure
        self.figure = figure
        self.views = tuple(views)
        self.maps = frozenset(maps)
        self.reads = reads
        self._claims = tuple(claims)
        functools.update_wrapper(self, measure)

    def __call__(self, traces: Traces, **settings: Any) -> Any:
        return self.measure(traces, **settings)

    def __repr__(self) -> str:
        return f"<finding {self.name}: {(self.__doc__ or '').splitlines()[0]}>"

    def claim(self, traces: Traces, **settings: Any) -> Verdict:
        """The verdict on the first claim; all MDMs among the traces count as one side, all ARMs as the other."""
        return self._claims[0](traces, **settings)

    def claims(self, traces: Traces, **settings: Any) -> list[Verdict]:
        """The verdicts on all claims, for each MDM by itself, and against each ARM where two are compared."""
        measured: xr.Dataset = traces if is_measured(traces, self.name) else self.measure(traces, **settings)
        sides: dict[str, list[str | None]] = {"mdm": [], "arm": []}
        for model in models_of(measured):
            sides[str(measured["model_kind"].values[measured["model"].values == model][0])].append(model)
        found = []
        for claim in self._claims:
            compares = "arm" in inspect.signature(claim).parameters
            for mdm in sides["mdm"] or [None]:
                for arm in (sides["arm"] or [None]) if compares else [None]:
                    found.append(claim(measured, mdm=mdm, **({"arm": arm} if compares else {})))
        return found


def get(name: str) -> Finding:
    """The finding of this name.

    >>> get("drift").paper
    '§3.1'
    """
    if name not in NAMES:
        raise FloatLensError(f"there is no finding {name!r}; there are {', '.join(NAMES)}")
    found: Finding = getattr(import_module(f"floatlens.findings.{name}"), name)
    return found
