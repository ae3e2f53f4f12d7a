"""Turn runs into report sections: measure a finding, draw its figures, test its claims and describe the result."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from floatlens.attention.statistic import expand
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import read_answers
from floatlens.evaluation.metrics import score
from floatlens.findings import style
from floatlens.findings.finding import (
    CONDITIONS,
    FINDINGS,
    Finding,
    ReportTable,
    describe_setting,
    headline,
    traces_for,
)
from floatlens.findings.samples import split_id
from floatlens.findings.spelling import count
from floatlens.findings.verdict import write_numbers
from floatlens.store.engine import ProgressCallback, as_one, run_all
from floatlens.store.folder import RunFolder
from floatlens.store.runs import TEXTS
from floatlens.trace.attributes import read_attributes
from floatlens.trace.trace import Trace

FIGURES, NUMBERS = "figures", "findings"
NOUNS = {"traces": "sample", "texts": "text"}


@dataclass
class Section:
    """A finding in the report; `problem` is the reason if it could not be analysed.

    A figure has the `stem` of its files, what it has (`title`), how to read it (`reading`), and the ids of the claims that
    it shows (`shows`), by default all.
    """

    name: str
    title: str
    paper: str = ""
    question: str = ""
    seen: list[str] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problem: str = ""


def analyse_findings(
    names: Sequence[str], runs: Sequence[Path], target: Path, jobs: int = 1, watch: ProgressCallback | None = None
) -> list[Section]:
    """Analyse findings on the runs of models, in parallel where there are cores."""
    shown = {setting: [*chain(*shown_samples(runs, condition))] for setting, condition in CONDITIONS.items()}
    tasks = [(name, runs, target, shown.get(FINDINGS[name].setting, [])) for name in names]
    found = run_all(analyse, tasks, jobs, as_one(watch, "figures and claims", len(tasks)))
    return [
        each if isinstance(each, Section) else Section(name, name.capitalize(), problem=reason_of(each))
        for name, each in zip(names, found, strict=True)
    ]


def analyse(
    name: str, runs: Sequence[Path], target: Path, shown: Sequence[Path] = (), watch: ProgressCallback | None = None
) -> Section:
    """Analyse one finding on all traces and answers of the runs; write its figures and numbers to `target`.

    `shown` are the traces that maps show, so that a large run is not opened for them. An error is reported in the finding's
    section and does not affect the others.
    """
    finding = FINDINGS[name]
    folders = [RunFolder.open(run) for run in runs]
    section = Section(name, finding.title, finding.paper, finding.question)
    try:
        source = _source(finding, folders)
        measured = finding.measure(source)
        section.claims = [verdict.to_dict() for verdict in finding.claims(measured)]
        section.settings = _settings(finding, measured)
        write_numbers(measured, target / NUMBERS / f"{name}.parquet")
        with style.same_looks([str(folder.manifest.get("asked", {}).get("model", "")) for folder in folders]):
            mapped = [Trace.open(path) for path in shown] or source
            section.figures = _draw(finding, measured, mapped, section.claims, target / FIGURES)
        section.seen, section.tables = finding.sentences(measured), finding.tables(measured)
        section.notes = finding.notes(measured)
    except Exception as error:  # any failure is reported in the finding's section; the other findings continue
        logging.getLogger(__name__).debug("finding %s failed", name, exc_info=True)
        section.problem = reason_of(error)
    if watch is not None:
        watch(name, 1)()
    return section


def reason_of(error: BaseException) -> str:
    """An error in one line; one that is not about the input is named."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FloatLensError) else f"{type(error).__name__}: {text}"


def available(runs: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the findings that the runs have data for."""
    answers = answers_in(runs)
    samples = [path for run in runs for _, path in RunFolder.open(run).samples()]
    texts = any((run / TEXTS / f"{TEXTS}.parquet").exists() for run in runs)
    recorded = {child.name for path in samples[:1] for child in path.iterdir()}  # arrays of a Zarr group are folders

    def has_data(finding: Finding) -> bool:
        if finding.reads == "texts":
            return texts
        answered = finding.reads == "traces" or (len(answers) > 0 and finding.applies(answers))
        return answered and (finding.reads == "answers" or bool(samples)) and recorded >= {*expand(finding.records)}

    return tuple(name for name, finding in FINDINGS.items() if has_data(finding))


def answers_in(runs: Sequence[Path]) -> pd.DataFrame:
    """Return all answers of the runs, possibly none."""
    return read_answers(file for run in runs if (file := run / "answers.parquet").exists())


def shown_samples(runs: Sequence[Path], condition: str = "") -> list[list[Path]]:
    """Choose the traces for maps and films: those of one question by all models that were traced on it.

    Questions that a study asked under `condition` and that all models answer correctly are preferred, then the one with the
    longest answer. Models that share no question with the others get a separate one, after them.
    """
    paths: dict[str, dict[str, Path]] = {}  # by sample and model
    right: dict[str, bool] = {}
    lengths: dict[str, int] = {}
    for run in runs:
        for name, path in RunFolder.open(run).samples():
            about = read_attributes(path, path)
            answers = json.loads(about.get("answers", "[]"))
            paths.setdefault(name, {})[str(about.get("model", ""))] = path
            right[name] = right.get(name, True) and score(str(about.get("output", "")), answers)["accuracy_words"] == 1
            lengths[name] = len(str(answers[0])) if answers else 0
    chosen = []
    while paths:
        best = min(paths, key=lambda n: (-len(paths[n]), split_id(n)[1] != condition, not right[n], -lengths[n], n))
        shown = paths[best]
        chosen.append(list(shown.values()))
        others = {name: {m: path for m, path in known.items() if m not in shown} for name, known in paths.items()}
        paths = {name: known for name, known in others.items() if known}
    return chosen


def _source(finding: Finding, folders: Sequence[RunFolder]) -> Any:
    if finding.reads == "traces":
        return traces_for(finding, folders)
    paths = [folder.path for folder in folders]
    if finding.reads == "texts":
        return paths
    answers = answers_in(paths)
    if answers.empty:
        raise FloatLensError(
            f"there are no answers for {finding.name}; create them with floatlens eval or floatlens stress"
        )
    return (traces_for(finding, folders), answers) if finding.reads == "both" else answers


def _draw(
    finding: Finding, measured: xr.Dataset, mapped: Any, claims: Sequence[dict[str, Any]], target: Path
) -> list[dict[str, Any]]:
    found = []
    beside: dict[str, Any] = {"paper": True} if "paper" in finding.figure_options else {}
    for view in finding.views:
        source = mapped if view in finding.maps else finding.select(measured, view)
        data = finding.figure(source, view=view, backend="none", **beside)
        if isinstance(data, pd.DataFrame) and data.empty:  # for example doses, in a run without any
            continue
        stem = finding.name if view == finding.views[0] else f"{finding.name}-{view}"
        about = {"title": view, "reading": "", "shows": (), **finding.looks.get(view, {})}
        drawn = finding.figure(source, view=view, title=headline(claims, about["shows"]), **beside)
        style.save(drawn, data, target / stem)
        found.append({"stem": stem, **{key: about[key] for key in ("title", "reading", "shows")}})
    return found


def _settings(finding: Finding, measured: xr.Dataset) -> dict[str, str]:
    about = measured.attrs
    found = {label: str(about[key]) for key, label in (("rule", "anchor rule"), ("score", "score")) if about.get(key)}
    if "residual" in about:
        found["residual"] = "(A + I)/2" if about["residual"] else "none"
    if "sample" in measured.sizes:
        found["measured on"] = count(measured.sizes["sample"], NOUNS.get(finding.reads, "question"))
        found["setting"] = describe_setting(str(about["setting"]))
    return found | {"intervals": "95 % over samples"}
