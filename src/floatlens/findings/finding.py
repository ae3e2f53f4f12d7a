"""What a finding is: a measurement, its figures, its claims, and what the report says about it.

A new finding is one file with one `register_finding(Finding(...))` line, in this folder or in a package of your own; a new
claim is a function with `@register_claim(...)` above it, also for a finding that exists already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
import xarray as xr

from floatlens.findings.samples import is_measured, models_of
from floatlens.findings.verdict import Verdict
from floatlens.registry import Registry


@dataclass
class Table:
    """Rows of text under a title; `strong` lists the cells (row, column) to print in bold."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    strong: set[tuple[int, int]] = field(default_factory=set)


def as_table(title: str, frame: pd.DataFrame, spell: Callable[[Any], str]) -> Table:
    """Convert a frame to text; `spell` formats its numbers."""
    rows = [
        [value if isinstance(value, str) else str(value) if isinstance(value, int) else spell(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    return Table(title, [str(name) for name in frame.columns], rows)


@dataclass(frozen=True)
class ReportText:
    """What the report says about a finding.

    Parameters
    ----------
    title, question
        The heading, and the question that the finding answers.
    views
        The title of each figure and how to read it, by view.
    tables
        `tables(measured)` returns the numbers to print.
    sentences
        `sentences(measured)` returns one or more sentences per model on what was measured.
    notes
        `notes(measured)` returns what a reader must know, such as samples that were left out.
    select
        `select(measured, view)` returns the samples that one figure can show together.
    """

    title: str
    question: str
    views: dict[str, tuple[str, str]] = field(default_factory=dict)
    tables: Callable[[Any], list[Table]] = lambda measured: []
    sentences: Callable[[Any], list[str]] = lambda measured: []
    notes: Callable[[Any], list[str]] = lambda measured: []
    select: Callable[[Any, str], Any] = lambda measured, view: measured


@dataclass(frozen=True)
class Claim:
    """A sentence made testable.

    `test(measured, ...)` returns a `Verdict`. Its keyword parameters say what it is about: `mdm` for a claim on a masked
    diffusion model, `mdm` and `arm` for a comparison with an autoregressive one, `model` for any model by itself.
    """

    id: str
    finding: str
    sentence: str
    source: str
    test: Callable[..., Verdict]

    def verdicts(self, measured: xr.Dataset) -> list[Verdict]:
        """Test the claim on every model, or pair of models, that it is about."""
        about = inspect.signature(self.test).parameters
        if "model" in about:
            return [self.test(measured, model=model) for model in models_of(measured)]
        sides: dict[str, list[str | None]] = {"mdm": [], "arm": []}
        for model in models_of(measured):
            sides[str(measured["model_kind"].values[measured["model"].values == model][0])].append(model)
        if "arm" not in about:
            return [self.test(measured, mdm=mdm) for mdm in sides["mdm"] or [None]]
        pairs = [(mdm, arm) for mdm in sides["mdm"] or [None] for arm in sides["arm"] or [None]]
        return [self.test(measured, mdm=mdm, arm=arm) for mdm, arm in pairs]


@dataclass(frozen=True)
class Finding:
    """One result of the paper.

    Parameters
    ----------
    name, paper
        The name on the command line, and the part of the paper that the finding comes from.
    measure
        `measure(traces_or_answers, ...)` returns a labelled dataset, one entry per sample.
    figure
        `figure(traces_or_measured, view=..., backend=...)` draws one of the `views`.
    report
        What the report says.
    views, maps
        The figures. Those in `maps` need traces; all others can also be drawn from what `measure` returned.
    reads
        "traces" or "answers": what of a run is measured.
    part
        The part of a study that makes what the finding reads.
    applies
        Whether a table of answers has what the finding needs.

    A finding can be called, which measures: `drift(traces)` is the same as `drift.measure(traces)`.
    """

    name: str
    paper: str
    measure: Callable[..., Any]
    figure: Callable[..., Any]
    report: ReportText
    views: Sequence[str] = ()
    maps: Sequence[str] = ()
    reads: Literal["traces", "answers"] = "traces"
    part: str = ""
    applies: Callable[[pd.DataFrame], bool] = lambda answers: len(answers) > 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "part", self.part or {"traces": "traces", "answers": "knowledge"}[self.reads])

    def __call__(self, samples: Any, **settings: Any) -> Any:
        return self.measure(samples, **settings)

    def claim(self, samples: Any, **settings: Any) -> Verdict:
        """Test the first claim; all MDMs among the samples count as one side, all ARMs as the other."""
        return self.registered_claims()[0].test(samples, **settings)

    def claims(self, samples: Any, **settings: Any) -> list[Verdict]:
        """Test all claims, for each model by itself or for each pair of an MDM and an ARM."""
        measured = samples if is_measured(samples, self.name) else self.measure(samples, **settings)
        return [verdict for claim in self.registered_claims() for verdict in claim.verdicts(measured)]

    def registered_claims(self) -> list[Claim]:
        """The claims that name this finding, in the order in which they were registered."""
        return [claim for claim in CLAIMS.values() if claim.finding == self.name]


# In the order of the paper, which is the order of the report; findings of plug-ins follow.
PAPER_ORDER = ("drift", "absorption", "geometry", "tokens", "heads", "flow", "knowledge", "stress", "causes")
FINDINGS: Registry[Finding] = Registry("finding", "floatlens.findings")
CLAIMS: Registry[Claim] = Registry("claim", "floatlens.findings")


def register_finding(finding: Finding) -> Finding:
    """Add a finding, so that studies, the report and the command line know it by its name."""
    place = PAPER_ORDER.index(finding.name) if finding.name in PAPER_ORDER else len(PAPER_ORDER)
    return FINDINGS.add(finding.name, finding, priority=len(PAPER_ORDER) - place)


def register_claim(
    id: str, *, finding: str, sentence: str, source: str
) -> Callable[[Callable[..., Verdict]], Callable[..., Verdict]]:
    """Add a claim: a function from what `finding` measured to a `Verdict`.

    Parameters
    ----------
    id
        A short name that is used once, such as "drift.moves".
    finding
        The finding whose measurements the claim is tested on.
    sentence, source
        The claim in plain words, and where it was made.
    """

    def add(test: Callable[..., Verdict]) -> Callable[..., Verdict]:
        CLAIMS.add(id, Claim(id, finding, sentence, source, test))
        return test

    return add
