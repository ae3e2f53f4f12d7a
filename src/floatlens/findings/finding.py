"""The class `Finding`: a measurement, its figures, its claims, and its text in the report.

A new finding is one file with one `register_finding(Finding(...))` line, in this folder or in your own package. A new claim
is a function decorated with `@register_claim(...)`, also for an existing finding.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import Any, Literal

import pandas as pd
import xarray as xr

from floatlens.findings.outcome import Outcome
from floatlens.findings.samples import is_measured, models_of
from floatlens.findings.verdict import Verdict
from floatlens.registry import Registry
from floatlens.stats import INCONCLUSIVE, SMALLEST_N, TOO_FEW

TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    (files("floatlens.findings") / "claims.toml").read_text(encoding="utf-8")
)


@dataclass
class ReportTable:
    """Rows of text under a title; `strong` lists the cells (row, column) to print in bold."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    strong: set[tuple[int, int]] = field(default_factory=set)


def as_table(title: str, frame: pd.DataFrame, spell: Callable[[Any], str]) -> ReportTable:
    """Convert a frame to text; `spell` formats its numbers."""
    rows = [
        [value if isinstance(value, str) else str(value) if isinstance(value, int) else spell(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    return ReportTable(title, [str(name) for name in frame.columns], rows)


@dataclass(frozen=True)
class ReportText:
    """The report's text about a finding.

    Parameters
    ----------
    title, question
        The heading, and the question that the finding answers.
    views
        The title of each figure and how to read it, by view.
    tables
        `tables(measured)` returns the numbers to print.
    sentences
        `sentences(measured)` returns one or more sentences per model that describe the results.
    notes
        `notes(measured)` returns notes for the reader, such as how many samples were left out.
    select
        `select(measured, view)` returns the samples that can be shown together in one figure.
    """

    title: str
    question: str
    views: dict[str, tuple[str, str]] = field(default_factory=dict)
    tables: Callable[[Any], list[ReportTable]] = lambda measured: []
    sentences: Callable[[Any], list[str]] = lambda measured: []
    notes: Callable[[Any], list[str]] = lambda measured: []
    select: Callable[[Any, str], Any] = lambda measured, view: measured


@dataclass(frozen=True)
class Claim:
    """A testable claim: a statistic with one value per sample, and the smallest effect that matters.

    Parameters
    ----------
    id
        A unique short name, such as "drift.moves".
    finding
        The finding whose measurements the claim is tested on.
    sentence, source
        The claim in plain words, and where it was made.
    statistic
        Description of the number that is averaged over samples.
    effect, why
        The smallest effect that matters, in units of the statistic, and the reason for it.
    rejected_if
        The result that would reject the claim.
    needs
        The traces or answers that the claim needs.
    test
        `test(measured, ...)` returns an `Outcome`. Its keyword parameters define which models it tests: `mdm` for a claim on
        a masked diffusion model, `arm` for one on an autoregressive model, `mdm` and `arm` for a comparison, `model` for
        any single model.
    """

    id: str
    finding: str
    sentence: str
    source: str
    statistic: str
    effect: float
    why: str
    rejected_if: str
    needs: str
    test: Callable[..., Outcome]

    def verdict(self, measured: xr.Dataset, **about: Any) -> Verdict:
        """Test the claim on the models in `about`, or on all models of a kind together."""
        found = self.test(measured, **about)
        decided = found.judge(self.effect)
        reason = found.reason
        if found.blocked:
            decided, reason = (decided if decided == TOO_FEW else INCONCLUSIVE), found.blocked
        elif decided == TOO_FEW and not (found.n == 0 and reason):
            reason = f"{found.n} samples have a value; at least {SMALLEST_N} are needed"
        return Verdict(
            self.finding,
            self.sentence,
            self.statistic,
            found.value,
            found.interval,
            decided,
            str(measured.attrs.get("claim_rule", measured.attrs.get("rule", ""))),
            found.n,
            found.models,
            reason,
            found.details,
            self.id,
            self.effect,
            self.source,
            float("nan") if decided == TOO_FEW else 1.0 if found.blocked else found.p_value(self.effect),
        )

    def verdicts(self, measured: xr.Dataset) -> list[Verdict]:
        """Test the claim on every model, or pair of models, that it applies to.

        If there are several pairs, those without a sample in common are left out.
        """
        about = self.about
        if about == ("model",):
            return [self.verdict(measured, model=model) for model in models_of(measured)]
        sides: dict[str, list[str | None]] = {"mdm": [], "arm": []}
        for model in models_of(measured):
            sides[str(measured["model_kind"].values[measured["model"].values == model][0])].append(model)
        chosen = list(product(*(sides[kind] or [None] for kind in about)))
        samples = {
            model: set(measured["sample_id"].values[measured["model"].values == model]) for model in models_of(measured)
        }
        shared = [models for models in chosen if None in models or set.intersection(*(samples[m] for m in models if m))]
        return [self.verdict(measured, **dict(zip(about, models, strict=True))) for models in shared or chosen]

    @property
    def about(self) -> tuple[str, ...]:
        """The kinds of models that the claim tests: ("model",), ("mdm",), ("arm",) or ("mdm", "arm")."""
        named = inspect.signature(self.test).parameters
        return ("model",) if "model" in named else tuple(kind for kind in ("mdm", "arm") if kind in named)


@dataclass(frozen=True)
class Finding:
    """One finding of the paper, or of related work.

    Parameters
    ----------
    name, paper
        The name on the command line, and the part of the paper that the finding comes from.
    measure
        `measure(traces_or_answers, ...)` returns a labelled dataset, one entry per sample.
    figure
        `figure(traces_or_measured, view=..., backend=...)` draws one of the `views`.
    report
        The text in the report.
    views, maps
        Names of the figures. Those in `maps` need traces; the others can also be drawn from the result of `measure`.
    reads
        The part of a run that is measured: "traces", "answers", or "both" (a pair of the two).
    setting
        The traces that the finding uses: "short" (questions without passages, as in the paper's figures of anchors) or
        "passages". If a run has only the other kind, that one is used.
    part
        The part of a study that produces the finding's data.
    applies
        Function that returns whether a table of answers has the data that the finding needs.
    records
        Statistics, or groups of statistics, that the finding needs beyond the default ones; a study records them.

    Calling a finding measures it: `drift(traces)` is the same as `drift.measure(traces)`.
    """

    name: str
    paper: str
    measure: Callable[..., Any]
    figure: Callable[..., Any]
    report: ReportText
    views: Sequence[str] = ()
    maps: Sequence[str] = ()
    reads: Literal["traces", "answers", "both"] = "traces"
    setting: Literal["short", "passages"] = "short"
    part: str = ""
    applies: Callable[[pd.DataFrame], bool] = lambda answers: len(answers) > 0
    records: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "part", self.part or {"answers": "knowledge"}.get(self.reads, "traces"))

    def __call__(self, samples: Any, **settings: Any) -> Any:
        return self.measure(samples, **settings)

    def claim(self, samples: Any, **settings: Any) -> Verdict:
        """Test the first claim; all masked diffusion models are one side, all autoregressive models the other."""
        first = self.registered_claims()[0]
        about = {name: value for name, value in settings.items() if name in ("mdm", "arm", "model")}
        others = {name: value for name, value in settings.items() if name not in about}
        measured = samples if is_measured(samples, self.name) else self.measure(samples, **others)
        return first.verdict(measured, **about)

    def claims(self, samples: Any, **settings: Any) -> list[Verdict]:
        """Test all claims, for each model or for each pair of a masked diffusion model and an autoregressive model."""
        measured = samples if is_measured(samples, self.name) else self.measure(samples, **settings)
        return [verdict for claim in self.registered_claims() for verdict in claim.verdicts(measured)]

    def registered_claims(self) -> list[Claim]:
        """The claims of this finding, in the order of registration."""
        return [claim for claim in CLAIMS.values() if claim.finding == self.name]


FINDINGS: Registry[Finding] = Registry("finding", "floatlens.findings", tuple(TEXTS))
CLAIMS: Registry[Claim] = Registry("claim", "floatlens.findings", tuple(TEXTS))


def register_finding(finding: Finding) -> Finding:
    """Register a finding, so that studies, the report and the command line can use it by name."""
    order = list(TEXTS)  # of the report; plug-ins follow
    priority = len(order) - order.index(finding.name) if finding.name in order else 0
    return FINDINGS.add(finding.name, finding, priority=priority, source=finding.measure)


def register_claim(id: str, **text: Any) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Register a claim: a function from the measurements of a finding to an `Outcome`.

    `text` has the fields of `Claim`: `finding`, `sentence`, `source` and `effect` are required, except for the claims of
    FloatLens itself, whose texts are in `claims.toml`.

    >>> @register_claim("mine.large", finding="mine", sentence="It is large.", source="me", effect=0.5)  # doctest: +SKIP
    ... def large(measured, *, mdm=None):
    ...     return mean_of(measured, measured["size"].values, kind="mdm", model=mdm)
    """
    if not text:
        finding = id.partition(".")[0]
        text = {"finding": finding, **next(claim for claim in TEXTS[finding]["claims"] if claim["id"] == id)}
    fields = {"id": id, "statistic": "", "why": "", "needs": "", **text}
    fields.setdefault("rejected_if", f"the 95 % interval lies below {fields['effect']:g}")

    def add(test: Callable[..., Outcome]) -> Callable[..., Outcome]:
        CLAIMS.add(id, Claim(**fields, test=test), source=test)
        return test

    return add
