"""From runs to sections: measure a finding, draw it, judge its claims, and put what is seen into words."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import answers_of
from floatlens.evaluation.evaluate import CLOSED, OPEN
from floatlens.files import atomic_write
from floatlens.findings import style
from floatlens.findings.registry import NAMES, Finding, get
from floatlens.record.trace import Trace
from floatlens.report.section import Drawing, Section, Words
from floatlens.report.spelling import count
from floatlens.report.words.registry import words
from floatlens.runs.folder import RunFolder
from floatlens.runs.progress import ProgressCallback
from floatlens.runs.traces import RunTraces

FIGURES, NUMBERS = "figures", "findings"


def analyse(
    name: str, runs: Sequence[Path], target: Path, shown: str | None = None, watch: ProgressCallback | None = None
) -> Section:
    """One finding on all traces and answers of the runs: its figures and numbers in `target`, and its section.

    `shown` is the sample that maps show. A finding that fails says so in its section and leaves the others alone.
    """
    finding, about = get(name), words(name)
    folders = [RunFolder.open(run) for run in runs]
    section = Section(name, about.title if about else name.capitalize(), finding.paper)
    section.question = about.question if about else (finding.__doc__ or "").splitlines()[0]
    done = watch(f"{name}: figures and claims", 1) if watch else None
    try:
        source = _source(finding, folders)
        measured = finding.measure(source)
        section.claims = [verdict.to_dict() for verdict in finding.claims(measured)]
        section.settings = _settings(finding, measured)
        _write_numbers(measured, target / NUMBERS / f"{name}.parquet")
        section.drawings = _drawn(finding, about, measured, _mapped(source, folders, shown), target / FIGURES)
        if about is not None:
            section.seen, section.tables = about.seen(measured), about.tables(measured)
            section.notes = about.notes(measured)
    except Exception as error:  # whatever one finding stumbles over is told in its section; the others go on
        logging.getLogger(__name__).debug("finding %s failed", name, exc_info=True)
        said = " ".join(str(error).split())
        section.problem = said if isinstance(error, FloatLensError) else f"{type(error).__name__}: {said}"
    if done is not None:
        done()
    return section


def available(runs: Sequence[Path]) -> tuple[str, ...]:
    """The findings for which the runs hold something to measure."""
    folders = [RunFolder.open(run) for run in runs]
    traced = any(folder.samples() for folder in folders)
    answers = answers_in(folders)
    found = []
    for name in NAMES:
        if get(name).reads == "traces":
            found += [name] * traced
        elif name == "knowledge":
            found += [name] * {CLOSED, OPEN}.issubset(answers["condition"])
        elif name == "stress":
            found += [name] * bool((answers["stress"] != "").any())
        else:  # causes
            found += [name] * ("role" in answers and bool(answers["role"].notna().any()))
    return tuple(found)


def answers_in(folders: Sequence[RunFolder]) -> pd.DataFrame:
    """All answers of the runs, possibly none."""
    paths = [folder.path for folder in folders if (folder.path / "answers.parquet").exists()]
    if not paths:
        return pd.DataFrame({"condition": [], "stress": [], "model": []}, dtype=object)
    return answers_of(paths)


def shown_sample(runs: Sequence[Path]) -> str | None:
    """The sample that maps and explorer show: traced for every model, and with the longest answer, the first of equals."""
    by_model: dict[str, dict[str, int]] = {}
    for run in runs:
        for _, path in RunFolder.open(run).samples():
            about = json.loads((path / "zarr.json").read_text(encoding="utf-8")).get("attributes", {})
            answers = json.loads(about.get("answers", "[]")) or [""]
            known = by_model.setdefault(str(about.get("model", "")), {})
            known[str(about.get("sample_id", ""))] = len(str(answers[0]))
    if not by_model:
        return None
    lengths = next(iter(by_model.values()))
    common = set.intersection(*(set(known) for known in by_model.values())) - {""}
    return min(common, key=lambda name: (-lengths[name], name)) if common else None


def _source(finding: Finding, folders: Sequence[RunFolder]) -> Any:
    if finding.reads == "traces":
        return RunTraces(folders)
    answers = answers_in(folders)
    if answers.empty:
        raise FloatLensError(f"there are no answers for {finding.name}; make them with floatlens eval or stress")
    return answers


def _mapped(source: Any, folders: Sequence[RunFolder], shown: str | None) -> Any:
    """The traces that maps show: those of one sample, since a large run need not be opened for them."""
    found = [Trace.open(path) for folder in folders for name, path in folder.samples() if name == shown]
    return found or source


def _drawn(finding: Finding, about: Words | None, measured: Any, mapped: Any, target: Path) -> list[Drawing]:
    found = []
    for view in finding.views:
        source = mapped if view in finding.maps else about.shown(measured, view) if about else measured
        data = finding.figure(source, view=view, backend="none")
        if isinstance(data, pd.DataFrame) and data.empty:  # such as doses, in a run that gave none
            continue
        stem = finding.name if view == finding.views[0] else f"{finding.name}-{view}"
        style.save(finding.figure(source, view=view), data, target / stem)
        title, reading = about.views.get(view, (view, "")) if about else (view, "")
        found.append(Drawing(stem, title, reading))
    return found


def _settings(finding: Finding, measured: Any) -> dict[str, str]:
    attributes = measured.attrs if isinstance(measured, xr.Dataset) else {}
    found: dict[str, str] = {}
    for key, label in (("rule", "anchor rule"), ("score", "score"), ("top", "top share of heads")):
        if attributes.get(key):
            found[label] = str(attributes[key])
    if "residual" in attributes:
        found["residual"] = "(A + I)/2" if attributes["residual"] else "none"
    if isinstance(measured, xr.Dataset) and "sample" in measured.sizes:
        found["measured on"] = count(measured.sizes["sample"], "sample" if finding.reads == "traces" else "question")
    found["intervals"] = "95 %, bootstrap over samples"
    return found


def _write_numbers(measured: Any, target: Path) -> None:
    """Numbers of each sample and layer as one table; what has further dimensions stays with its figure's data."""
    if not isinstance(measured, xr.Dataset):
        return
    names = [n for n, variable in measured.data_vars.items() if set(variable.dims) <= {"sample", "layer", "rule"}]
    with atomic_write(target) as temporary:
        measured[names].to_dataframe().reset_index().to_parquet(temporary, index=False)
