"""Turn runs into report sections: measure a finding, draw its figures, test its claims and describe the result."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr
from pyarrow import ArrowException
from pyarrow.parquet import read_metadata

from floatlens.attention.statistic import expand
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import answers_of
from floatlens.files import atomic_write
from floatlens.findings import style
from floatlens.findings.finding import (
    CONDITIONS,
    FINDINGS,
    Finding,
    ReportTable,
    condition_of,
    describe_setting,
    traces_for,
)
from floatlens.findings.spelling import count
from floatlens.store.engine import ProgressCallback, as_one, run_all
from floatlens.store.folder import RunFolder
from floatlens.store.runs import TEXTS
from floatlens.trace.attributes import read_attributes
from floatlens.trace.trace import Trace

FIGURES, NUMBERS = "figures", "findings"
NOUNS = {"traces": "sample", "texts": "text"}


@dataclass
class Drawing:
    """A figure: the stem of its files, its title, and how to read it."""

    stem: str
    title: str
    reading: str


@dataclass
class Section:
    """A finding in the report; `problem` is the reason if it could not be analysed."""

    name: str
    title: str
    paper: str = ""
    question: str = ""
    seen: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problem: str = ""


def analyse(
    name: str, runs: Sequence[Path], target: Path, shown: Sequence[str] = (), watch: ProgressCallback | None = None
) -> Section:
    """Analyse one finding on all traces and answers of the runs; write its figures and numbers to `target`.

    `shown` are the samples that maps show, one per model. An error is reported in the finding's section and does not
    affect the others.
    """
    finding = FINDINGS[name]
    folders = [RunFolder.open(run) for run in runs]
    section = Section(name, finding.title, finding.paper, finding.question)
    try:
        source = _source(finding, folders)
        measured = finding.measure(source)
        section.claims = [verdict.to_dict() for verdict in finding.claims(measured)]
        section.settings = _settings(finding, measured)
        _write_numbers(measured, target / NUMBERS / f"{name}.parquet")
        with style.same_looks([str(folder.manifest.get("asked", {}).get("model", "")) for folder in folders]):
            section.drawings = _drawn(finding, measured, _mapped(source, folders, shown), target / FIGURES)
        section.seen, section.tables = finding.sentences(measured), finding.tables(measured)
        section.notes = finding.notes(measured)
    except Exception as error:  # any failure is reported in the finding's section; the other findings continue
        logging.getLogger(__name__).debug("finding %s failed", name, exc_info=True)
        sentence = " ".join(str(error).split())
        section.problem = sentence if isinstance(error, FloatLensError) else f"{type(error).__name__}: {sentence}"
    if watch is not None:
        watch(name, 1)()
    return section


def analyse_findings(
    names: Sequence[str], homes: Sequence[Path], target: Path, jobs: int = 1, watch: ProgressCallback | None = None
) -> list[Section]:
    """Analyse findings on the runs of models, in parallel where there are cores."""
    shown = {setting: shown_samples(homes, condition) for setting, condition in CONDITIONS.items()}
    tasks = [(name, homes, target, shown.get(FINDINGS[name].setting, ())) for name in names]
    found = run_all(analyse, tasks, jobs, as_one(watch, "figures and claims", len(tasks)))
    return [
        each
        if isinstance(each, Section)
        else Section(name, name.capitalize(), problem=f"{type(each).__name__}: {each}")
        for name, each in zip(names, found, strict=True)
    ]


def available(runs: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the findings that the runs have data for."""
    folders = [RunFolder.open(run) for run in runs]
    samples = [path for folder in folders for _, path in folder.samples()]
    traced, answers = bool(samples), answers_in(folders)
    read = any((folder.path / TEXTS / f"{TEXTS}.parquet").exists() for folder in folders)
    recorded = {child.name for path in samples[:1] for child in path.iterdir()}  # arrays of a Zarr group are folders
    return tuple(
        name
        for name, finding in FINDINGS.items()
        if (read if finding.reads == "texts" else traced or finding.reads == "answers")
        and all(record in recorded for record in expand(finding.records))
        and (finding.reads in ("traces", "texts") or (len(answers) > 0 and finding.applies(answers)))
    )


def answers_in(folders: Sequence[RunFolder]) -> pd.DataFrame:
    """Return all answers of the runs, possibly none."""
    files = [folder.path / "answers.parquet" for folder in folders]
    paths = [file for file in files if file.exists() and _has_rows(file)]
    if not paths:
        return pd.DataFrame({"condition": [], "stress": [], "model": []}, dtype=object)
    return answers_of(paths)


def _has_rows(file: Path) -> bool:
    """Return whether a table is not known to be empty; one that cannot be read is reported by its reader."""
    try:
        return bool(read_metadata(file).num_rows)
    except (OSError, ArrowException):
        return True


def shown_samples(runs: Sequence[Path], condition: str = "") -> tuple[str, ...]:
    """Choose the samples for maps and the explorer: one that all models were traced on, the one with the longest answer.

    Models that share no sample with the others get a separate one. Samples that a study asked under `condition` are
    preferred.
    """
    by_model: dict[str, dict[str, int]] = {}
    for run in runs:
        for name, path in RunFolder.open(run).samples():
            about = read_attributes(path, path)
            answers = json.loads(about.get("answers", "[]")) or [""]
            by_model.setdefault(str(about.get("model", "")), {})[name] = len(str(answers[0]))
    chosen: list[str] = []
    while by_model:
        lengths = {name: length for known in by_model.values() for name, length in known.items()}
        traced = Counter(name for known in by_model.values() for name in known)
        best = min(lengths, key=lambda name: (-traced[name], condition_of(name) != condition, -lengths[name], name))
        chosen.append(best)
        by_model = {model: known for model, known in by_model.items() if best not in known}
    return tuple(chosen)


def _source(finding: Finding, folders: Sequence[RunFolder]) -> Any:
    if finding.reads == "traces":
        return traces_for(finding, folders)
    if finding.reads == "texts":
        return [folder.path for folder in folders]
    answers = answers_in(folders)
    if answers.empty:
        raise FloatLensError(
            f"there are no answers for {finding.name}; create them with floatlens eval or floatlens stress"
        )
    return (traces_for(finding, folders), answers) if finding.reads == "both" else answers


def _mapped(source: Any, folders: Sequence[RunFolder], shown: Sequence[str]) -> Any:
    """Return the traces that maps show: those of one sample per model, so that a large run is not opened for them."""
    found = [Trace.open(path) for folder in folders for name, path in folder.samples() if name in shown]
    return found or source


def _drawn(finding: Finding, measured: Any, mapped: Any, target: Path) -> list[Drawing]:
    found = []
    for view in finding.views:
        source = mapped if view in finding.maps else finding.select(measured, view)
        beside: dict[str, Any] = {"paper": True} if "paper" in finding.figure_options else {}
        data = finding.figure(source, view=view, backend="none", **beside)
        if isinstance(data, pd.DataFrame) and data.empty:  # for example doses, in a run without any
            continue
        stem = finding.name if view == finding.views[0] else f"{finding.name}-{view}"
        style.save(finding.figure(source, view=view, **beside), data, target / stem)
        title, reading = finding.captions.get(view, (view, ""))
        found.append(Drawing(stem, title, reading))
    return found


def _settings(finding: Finding, measured: Any) -> dict[str, str]:
    attributes = measured.attrs if isinstance(measured, xr.Dataset) else {}
    found: dict[str, str] = {}
    for key, label in (("rule", "anchor rule"), ("score", "score")):
        if attributes.get(key):
            found[label] = str(attributes[key])
    if "residual" in attributes:
        found["residual"] = "(A + I)/2" if attributes["residual"] else "none"
    if isinstance(measured, xr.Dataset) and "sample" in measured.sizes:
        found["measured on"] = count(measured.sizes["sample"], NOUNS.get(finding.reads, "question"))
        found["setting"] = describe_setting(str(attributes.get("setting", finding.setting)))
    found["intervals"] = "95 % over samples"
    return found


def _write_numbers(measured: Any, target: Path) -> None:
    """Write the numbers per sample and layer as one table; variables with more dimensions are stored with their figure."""
    if not isinstance(measured, xr.Dataset):
        return
    names = [n for n, variable in measured.data_vars.items() if set(variable.dims) <= {"sample", "layer", "rule"}]
    with atomic_write(target) as temporary:
        measured[names].to_dataframe().reset_index().to_parquet(temporary, index=False)
