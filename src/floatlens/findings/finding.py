"""The classes `Finding` (what is measured, its figures, its text in the report) and `Claim`, and their registries.

A new finding is a subclass of `Finding` and one `register_finding` line, in this folder or in your own package. A claim
about one of its numbers is declared in `claims.toml`; any other is a function decorated with `@register_claim(...)`.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from importlib.resources import files
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens import stats
from floatlens.anchors import parse_rule, settings_of
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.sources import OPEN, SHORT
from floatlens.findings import style
from floatlens.findings.draw import layer_maps, lines
from floatlens.findings.samples import (
    as_traces,
    by_model,
    mean,
    mean_over,
    models_of,
    parts_of,
    per_sample,
    require,
    setting_of,
    split_id,
)
from floatlens.findings.spelling import number, percent
from floatlens.findings.verdict import KINDS, Verdict, by_claim, difference, mean_of, no_sink, rows_of
from floatlens.registry import Registry
from floatlens.stats import FAILS, HOLDS, INCONCLUSIVE, NAN, NOT_TESTABLE, SMALLEST_N, Array
from floatlens.store.folder import RunFolder
from floatlens.store.runs import RunTraces
from floatlens.version import __version__

TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    (files("floatlens.findings") / "claims.toml").read_text(encoding="utf-8")
)
NAMES = [name for finding, text in TEXTS.items() for name in (finding, *(claim["id"] for claim in text["claims"]))]
ORDER = {name: len(NAMES) - place for place, name in enumerate(NAMES)}  # priorities: that of the file, then plug-ins
MODULES = (
    "drift", "absorption", "geometry", "sink", "tokens", "heads", "flow", "knowledge", "stress", "links", "causes",
    "other_papers", "reuse",
)  # fmt: skip
ReportTable: TypeAlias = dict[str, Any]  # title, columns, and rows of text, as the template of the report takes them
FIELD = re.compile(r"\{(\w+):?([^}]*)\}")  # of a sentence


def as_table(title: str, rows: pd.DataFrame | Iterable[Mapping[str, Any]]) -> ReportTable:
    """Convert a frame, or one mapping per row, to text."""
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    cells = [
        [value if isinstance(value, str) else str(value) if isinstance(value, int) else number(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    return {"title": title, "columns": [str(name) for name in frame.columns], "rows": cells}


class Finding:
    """One finding of the paper, or of related work; the texts of FloatLens's own are in `claims.toml`.

    A subclass or `declare_finding` gives it `measure_one(trace, *, option=...)`, which returns a Dataset with numbers per
    layer. The base measures all samples, draws the numbers in `labels` by layer, tests the claims, and makes the table and
    the section of the report.

    name, title, question, paper   the name on the command line, the heading, the question, the part of a paper it is from
    table, columns                 the title of the table, and its columns: a label and the number whose mean it shows
    says                           sentences of the report per model, such as "{model} moves {floating:%}"
    looks                          per view its title, how to read it (`reading`), the ids of the claims that it shows
                                   (`shows`, by default all), and the settings of `draw.lines` or `draw.layer_maps`
    labels, variables              numbers (sample, layer) in the figure by layer; what each number of the result means
    views, maps                    names of the figures: `draw_VIEW(measured, *, backend)`, or lines by layer; `maps`
                                   are drawn from traces
    needs, needs_means             variables of a trace; of the latter the mean over heads is enough
    records                        statistics that a study records in addition to the default ones
    reads                          "traces", "answers", "both" (a pair of the two), or "texts" (see `window.read_text`)
    setting                        "short" questions, questions with "passages", or held-out prose ("text")
    parts                          the parts of a study that produce the data
    """

    name: str = ""
    title: str = ""
    question: str = ""
    paper: str = ""
    table: str = ""
    says: Sequence[str] = ()
    columns: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    looks: Mapping[str, Mapping[str, Any]] = {}
    views: Sequence[str] = ("layers",)
    maps: Sequence[str] = ()
    needs: Sequence[str] = ()
    needs_means: Sequence[str] = ()
    records: Sequence[str] = ()
    reads: Literal["traces", "answers", "both", "texts"] = "traces"
    setting: Literal["short", "passages", "text"] = "short"
    parts: Sequence[str] = ("traces",)

    def __init__(self, **about: Any) -> None:
        vars(self).update(about)
        text = TEXTS.get(self.name, {})
        vars(self).update({key: value for key, value in text.items() if key not in ("views", "claims")})
        if "views" in text:
            self.looks, self.views = text["views"], tuple(text["views"])

    # What it measures

    measure_one: Callable[..., xr.Dataset]

    def measure_all(self, *args: Any, **options: Any) -> xr.Dataset:
        """Measure each trace and stack the results along `sample`; findings of answers measure a table instead."""

        def one(trace: Any) -> xr.Dataset:
            require(trace, *self.needs, means=self.needs_means, finding=self.name)
            return self.measure_one(trace, **options)

        return per_sample(args[0], one)

    def measure(self, samples: Any, **options: Any) -> xr.Dataset:
        """Measure traces (one, several, or those of a run) or answers; one entry per sample.

        The options are those of `measure_one`; they are kept in the attributes of the result.
        """
        if isinstance(samples, xr.Dataset) and samples.attrs.get("finding") == self.name:
            return samples  # already measured
        options = self.measure_options | options
        rules = options.get("rule", ())
        ids = [parse_rule(rule).id for rule in ([rules] if isinstance(rules, str) else rules)]
        if ids:
            options["rule"] = ids[0] if isinstance(rules, str) else ids
        attributes = {key: value for key, value in options.items() if isinstance(value, str | int | float)}
        attributes |= {"rule": ", ".join(ids), "finding": self.name, "floatlens": __version__}
        measured = self.measure_all(samples, **options).assign_attrs(attributes)
        given = measured["setting"].values if "setting" in measured.coords else [self.setting]
        measured.attrs["setting"] = ", ".join(sorted(set(map(str, given))))
        for name in measured.data_vars.keys() & self.variables:
            measured[name].attrs["description"] = self.variables[str(name)]
        return measured

    def __call__(self, samples: Any, **options: Any) -> xr.Dataset:
        return self.measure(samples, **options)

    @cached_property
    def measure_options(self) -> dict[str, Any]:
        """The options of `measure` with their defaults."""
        return settings_of(self.measure_all if self.reads in ("answers", "texts") else self.measure_one)

    @cached_property
    def figure_options(self) -> set[str]:
        """The names of the options of `figure`: those of `measure`, and of all views."""
        drawn = {name for view in self.views for name in settings_of(self._draw(view))}
        return drawn - {"backend"} | self.measure_options.keys()

    def applies(self, answers: pd.DataFrame) -> bool:
        """Whether a table of answers has the data that the finding needs."""
        return len(answers) > 0

    # Figures

    def figure(
        self, samples: Any, *, view: str = "", backend: str = "matplotlib", title: str = "", **options: Any
    ) -> Any:
        """Draw one of the `views` (by default the first) from traces, answers, or the result of `measure`.

        The options are those of `measure` and of the view, such as `paper=True` to add the published numbers. The title is
        by default what the samples say about the claims that the view shows. Returns a matplotlib figure, or with
        `backend="none"` its data as a table.
        """
        view = view or self.views[0]
        mapped = view in self.maps
        check_known("view", view, self.views)
        check_known("backend", backend, ("matplotlib", "none"))
        for name in options.keys() - self.figure_options:
            known = ", ".join(sorted(self.figure_options)) or "none"
            raise FloatLensError(f"{self.name} has no option {name!r}; it has {known}")
        draw = self._draw(view)
        if not mapped:
            samples = self.measure(samples, **{name: options[name] for name in options if name in self.measure_options})
        drawn = draw(samples, backend=backend, **{name: options[name] for name in options.keys() & settings_of(draw)})
        if backend == "matplotlib":
            look = self.looks.get(view, {})
            if not title and not mapped:
                shown = look.get("shows", ())
                claims = [claim for claim in self.registered_claims() if not shown or claim.id in shown]
                title = headline([each.to_dict() for claim in claims for each in claim.verdicts(samples)], shown)
            setting = setting_of(as_traces(samples)[0]) if mapped else samples.attrs["setting"]
            style.title(drawn, title or look.get("title", self.title))
            style.caption(drawn, f"{drawn.get_supxlabel()} Setting: {describe_setting(setting)}.")
        return drawn

    def _draw(self, view: str) -> Callable[..., Any]:
        def draw_declared(measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
            given: dict[str, Any] = {"names": self.labels, **self.looks.get(view, {})}
            look = {key: value for key, value in given.items() if key not in ("title", "reading", "shows")}
            return (layer_maps if "across" in look else lines)(measured, backend=backend, **look)

        return getattr(self, f"draw_{view}", draw_declared)

    # Claims

    def claim(self, samples: Any, **options: Any) -> Verdict:
        """Test the first claim; all masked diffusion models are one side, all autoregressive models the other."""
        about = {name: options.pop(name) for name in ("mdm", "arm", "model") if name in options}
        return self.registered_claims()[0].verdict(self.measure(samples, **options), **about)

    def claims(self, samples: Any, **options: Any) -> list[Verdict]:
        """Test all claims, for each model or for each pair of a masked diffusion model and an autoregressive model."""
        measured = self.measure(samples, **options)
        return [verdict for claim in self.registered_claims() for verdict in claim.verdicts(measured)]

    def registered_claims(self) -> list[Claim]:
        """The claims of this finding, in the order of `claims.toml`; those of plug-ins follow."""
        return [claim for claim in CLAIMS.values() if claim.finding == self.name]

    # The report

    def row(self, part: xr.Dataset) -> Mapping[str, Any]:
        """The numbers of one model in the table; by default the means of `columns`, or of `labels`."""
        columns = self.columns or {label.replace("\n", " "): name for name, label in self.labels.items()}
        return {label: mean(part[name].values) for label, name in columns.items()}

    def tables(self, measured: xr.Dataset) -> list[ReportTable]:
        """The tables of the report."""
        rows = [
            {"model": model, "kind": kind, **self.row(part), "samples": part.sizes["sample"]}
            for model, kind, part in by_model(measured)
        ]
        return [as_table(self.table, rows)]

    def sentences(self, measured: xr.Dataset) -> list[str]:
        """The sentences of the report for each model: those of `says` whose numbers are all known."""
        told = [_say(text, f"{model} ({kind})", part) for model, kind, part in by_model(measured) for text in self.says]
        return [text for text in told if text]

    def notes(self, measured: xr.Dataset) -> list[str]:
        """Notes for the reader of the report, such as how many samples were left out."""
        return []

    def select(self, measured: xr.Dataset, view: str) -> xr.Dataset:
        """The samples that can be shown together in one figure of the report."""
        return measured


def _say(text: str, model: str, part: xr.Dataset) -> str:
    """A sentence with the means of its numbers; empty if one is unknown.

    {x} has three significant digits, {x:2} has two; {x:%} and {x:.1%} are percentages.
    """
    means = {name: mean(part[name].values) for name, _ in FIELD.findall(text) if name != "model"}

    def spell(field: re.Match[str]) -> str:
        name, way = field.groups()
        if name == "model":
            return model
        return percent(means[name], int(way[1:-1] or 0)) if way.endswith("%") else number(means[name], int(way or 3))

    return "" if any(value != value for value in means.values()) else FIELD.sub(spell, text)


@dataclass(frozen=True)
class Claim:
    """A testable claim: a statistic with one value per sample, and the smallest effect that matters.

    id, finding               a unique short name, such as "drift.moves", and the finding whose measurements it is tested on
    sentence, whose, source   the claim in plain words, whose it is ("the paper", an arXiv number, "FloatLens"), and where it
                              was made
    effect, why               the smallest effect that matters, in units of the statistic, and the reason for it
    otherwise                 what is said instead in the title of a figure if the claim fails
    aloud, aloud_fails        what the report says first if it holds, or fails, with the models and numbers of the verdict
    test, about               `test(measured, ...)` returns a `Verdict` on the models that it takes: ("mdm",), ("arm",),
                              ("mdm", "arm") for a comparison, or ("model",) for any single model
    below                     a second condition: the statistic must also lie below this bound
    statistic, rejected_if, needs   the number that is averaged over samples, the result that would reject the claim, and the
                              data that it needs
    setting                   that of its measurements if it is not the finding's
    primary                   whether a study was made for it: verdicts on primary claims are corrected for their number, and
                              all others are exploratory
    """

    id: str
    finding: str
    sentence: str
    source: str
    effect: float
    test: Callable[..., Verdict]
    about: tuple[str, ...] = ()
    statistic: str = ""
    why: str = ""
    rejected_if: str = ""
    needs: str = ""
    whose: str = ""
    primary: bool = False
    setting: str = ""
    otherwise: str = ""
    aloud: str = ""
    aloud_fails: str = ""
    below: float | None = None

    def verdict(self, measured: xr.Dataset, **models: str | None) -> Verdict:
        """Test the claim on the given models (`mdm`, `arm`, `model`), or on all models of a kind together."""
        found = self.test(measured, **models)
        decided, reason = (found.verdict, found.reason) if found.verdict else self.judge(found)
        tested = self.primary and decided != NOT_TESTABLE and found.values is not None
        rule = measured["rule"].values[0] if "rule" in measured.coords else measured.attrs.get("rule", "")
        return replace(
            found,
            finding=self.finding,
            claim=self.sentence,
            statistic=self.statistic,
            models=found.models or tuple(model for model in models.values() if model),
            verdict=decided,
            rule=str(rule),
            reason=reason,
            id=self.id,
            effect=self.effect,
            whose=self.whose or self.source,
            source=self.source,
            primary=self.primary,
            setting=self.setting or str(measured.attrs.get("setting", "")),
            p=stats.p_value(stats.interval_of_mean, found.values, null=self.effect) if tested else NAN,
        )

    def judge(self, found: Verdict) -> tuple[str, str]:
        """Verdict on all conditions, and its reason: it holds if all do, fails if one does, is otherwise inconclusive."""
        if found.n < SMALLEST_N:
            few = f"too few samples: {found.n} with a value, at least {SMALLEST_N} are needed"
            return NOT_TESTABLE, found.reason if found.reason and not found.n else few
        judged, (low, high) = [stats.judge(found.value, found.interval, found.n, self.effect)], found.interval
        bounds, sides = f"{self.effect:g}", ("lies above", "lies below")
        if self.below is not None:
            judged.append(stats.judge(-found.value, (-high, -low), found.n, -self.below))
            bounds, sides = f"{self.effect:g} to {self.below:g}", ("lies within", "lies outside")
        verdict = next((one for one in (NOT_TESTABLE, FAILS, INCONCLUSIVE) if one in judged), HOLDS)
        side = {HOLDS: sides[0], FAILS: sides[1], INCONCLUSIVE: "includes"}.get(verdict)
        parts = [f"the interval {side} {bounds}" if side else "the statistic has no interval", found.reason]
        return verdict, "; ".join(part for part in parts if part)

    def verdicts(self, measured: xr.Dataset) -> list[Verdict]:
        """Test the claim on every model, or pair of models, that it applies to.

        If there are several pairs, those without a sample in common are left out.
        """
        kinds = dict(zip(measured["model"].values, measured["model_kind"].values, strict=True))
        ids = {model: set(part["sample_id"].values) for model, part in parts_of(measured)}
        sides = [[model for model, its in kinds.items() if side in (its, "model")] for side in self.about]
        chosen = list(product(*(models or [None] for models in sides)))
        shared = [models for models in chosen if None in models or set.intersection(*(ids[m] for m in models))]
        return [self.verdict(measured, **dict(zip(self.about, models, strict=True))) for models in shared or chosen]


FINDINGS: Registry[Finding] = Registry("finding", "floatlens.findings", MODULES)
CLAIMS: Registry[Claim] = Registry("claim", "floatlens.findings", MODULES)


def headline(claims: Sequence[dict[str, Any]], shown: Sequence[str] = ()) -> str:
    """The finding as the title of a figure: the first claim that holds or fails, or else what stays open.

    `claims` are verdicts as in claims.json, `shown` the ids of those that the figure shows, by default all. The MDM and the
    ARM are called by their names if there is one of each.

    >>> one = {"id": "values.small", "claim": "Anchors carry small values", "verdict": "fails", "models": ["a"]}
    >>> headline([one])
    'Anchors do not carry small values'
    >>> headline([one, {**one, "verdict": "holds"}])
    'Anchors carry small values: 1 of 2 models'
    >>> headline([{**one, "verdict": "inconclusive"}])
    'Undecided whether anchors carry small values'
    """
    groups = by_claim(claims)
    groups = {id: groups[id] for id in shown or groups if id in groups}
    for id, several in groups.items():
        tested = [claim for claim in several if claim["verdict"] != NOT_TESTABLE]
        for verdict in (HOLDS, FAILS):
            if number := sum(claim["verdict"] == verdict for claim in tested):
                sentence = several[0]["claim"]
                otherwise = (CLAIMS[id].otherwise if id in CLAIMS else "") or f"Not so: {sentence}"
                what = "models" if len(several[0]["models"]) == 1 else "pairs of models"
                share = f": {number} of {len(tested)} {what}" if number < len(tested) else ""
                return _name_models(sentence if verdict == HOLDS else otherwise, tested) + share
    every = [claim for several in groups.values() for claim in several]
    undecided = [claim for claim in every if claim["verdict"] != NOT_TESTABLE]
    for claim in undecided or every:
        sentence = claim["claim"] if claim["claim"][1:2].isupper() else claim["claim"][:1].lower() + claim["claim"][1:]
        several = [each for each in undecided or every if each["claim"] == claim["claim"]]
        return f"{'Undecided' if undecided else 'Not testable here:'} whether {_name_models(sentence, several)}"
    return ""


def _name_models(sentence: str, claims: Sequence[dict[str, Any]]) -> str:
    """The sentence with the name of the model in place of "the MDM" and "the ARM", where all claims have the same one."""
    about = CLAIMS[claims[0]["id"]].about if claims[0].get("id") in CLAIMS else ()
    for kind, names in zip(about, zip(*(claim["models"] for claim in claims), strict=False), strict=False):
        if len(set(names)) == 1:
            sentence = re.sub(rf"\b[Tt]he {kind.upper()}\b", style.short(names[0]).replace("\\", r"\\"), sentence)
    return sentence


def register_finding(finding: Finding) -> Finding:
    """Register a finding, so that studies, the report and the command line can use it by name, and its declared claims."""
    source = vars(finding).get("measure_one") or vars(finding).get("measure_all") or type(finding)
    for text in TEXTS.get(finding.name, {}).get("claims", ()):
        if "number" in text:
            known = {each.name: text[each.name] for each in fields(Claim) if each.name in text}
            about = tuple(sorted(text["of"].split(" - "), reverse=True))
            claim = Claim(finding=finding.name, test=partial(_test_number, text), about=about, **known)
            CLAIMS.add(claim.id, claim, priority=ORDER[claim.id], source=source)
    return FINDINGS.add(finding.name, finding, priority=ORDER.get(finding.name, 0), source=source)


def declare_finding(**about: Any) -> Callable[[Callable[..., xr.Dataset]], Finding]:
    """Register a function as the `measure_one` of a finding with its name; for answers or texts, as its `measure_all`.

    `about` are other attributes of `Finding`: its texts, and functions in place of its methods, such as `draw_VIEW`.
    """

    def declare(measure: Callable[..., xr.Dataset]) -> Finding:
        finding = Finding(name=measure.__name__, **about)
        setattr(finding, "measure_all" if finding.reads in ("answers", "texts") else "measure_one", measure)
        return register_finding(finding)

    return declare


def register_claim(id: str, **text: Any) -> Callable[[Callable[..., Verdict]], Callable[..., Verdict]]:
    """Register a claim: a function from the measurements of a finding to a `Verdict` (value, interval, n, models).

    `text` has the fields of `Claim`: `finding`, `sentence`, `source` and `effect` are required, except for the claims of
    FloatLens itself, whose texts are in `claims.toml`. The names of the function's parameters are the claim's `about`.

    >>> @register_claim("mine.large", finding="mine", sentence="It is large.", source="me", effect=0.5)  # doctest: +SKIP
    ... def large(measured, *, mdm=None):
    ...     return mean_of(measured, measured["size"].values, kind="mdm", model=mdm)
    """
    if not text:
        finding = id.partition(".")[0]
        text = {"finding": finding, **next(claim for claim in TEXTS[finding]["claims"] if claim["id"] == id)}
    known = {"rejected_if": f"the 95 % interval lies below {text['effect']:g}", **text, "id": id}

    def add(test: Callable[..., Verdict]) -> Callable[..., Verdict]:
        taken = inspect.signature(test).parameters
        about = tuple(kind for kind in ("model", "mdm", "arm") if kind in taken)
        CLAIMS.add(id, Claim(**known, test=test, about=about), priority=ORDER.get(id, 0), source=test)
        return test

    return add


def _test_number(text: Mapping[str, Any], measured: xr.Dataset, **models: str | None) -> Verdict:
    """Test a claim about a number of the measurement, as `claims.toml` declares it.

    number   the variable: one value per sample; of one per layer, the mean over layers
    of       whose: mdm, arm or model; mdm - arm or arm - mdm for a comparison question by question
    beside   further numbers in the details of the verdict: a label and the variable
    sink     true if it presupposes an ARM with a sink at its first token
    layers   number of layers that it needs
    what     as in `mean_of`
    """

    def per_sample_values(name: str) -> Array:
        values = measured[name].values
        return mean_over(values, 1) if "layer" in measured[name].dims else np.asarray(values, float)

    if text["number"] not in measured:
        return Verdict(reason=f"{text['number']} was not measured")
    for model in [model for model in models.values() if model] or models_of(measured):
        rows = rows_of(measured, None, model)
        count = int(np.isfinite(measured["depth"].values[rows]).sum(axis=1).max(initial=0)) if "layers" in text else 0
        if count < text.get("layers", 0):
            return Verdict(reason=f"{model} has {count} layers; at least {text['layers']} are needed")
    values = per_sample_values(text["number"])
    beside = {label: per_sample_values(name) for label, name in text.get("beside", {}).items()}
    first, *second = text["of"].split(" - ")
    if not second:
        about = {"kind": first if first in KINDS else None, "model": models.get(first)}
        return mean_of(measured, values, **about, beside=beside, what=text.get("what", "samples"))
    mdm, arm = models.get("mdm"), models.get("arm")
    found = difference(measured, values, mdm=mdm, arm=arm, sign=1 if first == "mdm" else -1, beside=beside)
    return found.unless(no_sink(measured, arm)) if text.get("sink") else found


# Which traces of a run a finding measures. The paper studies anchors on short questions without passages (32 to 64 new
# tokens, one step per token, one block), and retrieval heads, flow, knowledge and stress with passages.

CONDITIONS = {"short": SHORT, "passages": OPEN}
SETTINGS = ("paper", *CONDITIONS)  # as in the paper, all short, all with passages
WORDS = {"short": "short questions without passages", "passages": "questions with passages", "text": "prose"}


def describe_setting(setting: str) -> str:
    """Spell out the setting of a measurement or of several."""
    return ", ".join(WORDS.get(name, name) for name in setting.split(", "))


def traced_conditions(findings: Sequence[Finding], setting: str = "paper") -> tuple[str, ...]:
    """Which sets of traces the findings need: short questions, or questions with passages."""
    needed = {each.setting if setting == "paper" else setting for each in findings if each.reads in ("traces", "both")}
    return tuple(condition for name, condition in CONDITIONS.items() if name in needed)


def traces_for(
    finding: Finding, folders: Sequence[RunFolder], limit: int | None = None, watch: Any = None
) -> RunTraces:
    """The traces of the finding's setting, or all traces if there are none of it; see `RunTraces` for the parameters."""
    wanted = CONDITIONS[finding.setting]
    known = {split_id(name)[1] for folder in folders for name, _ in folder.samples()}
    return RunTraces(folders, limit, watch, lambda name: wanted not in known or split_id(name)[1] == wanted)
