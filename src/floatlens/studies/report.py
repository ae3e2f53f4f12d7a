"""Build the report of one or more run folders."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatlens import untrusted
from floatlens.errors import FloatLensError
from floatlens.evaluation.metrics import score
from floatlens.explorer.film import film
from floatlens.files import atomic_write
from floatlens.findings.finding import CONDITIONS, condition_of
from floatlens.findings.spelling import listed
from floatlens.findings.style import short
from floatlens.store.engine import ProgressCallback
from floatlens.store.folder import RunFolder
from floatlens.store.runs import model_runs
from floatlens.studies.analyse import FIGURES, Section, analyse_findings, answers_in, available
from floatlens.studies.opening import draw_opening, switch_traces
from floatlens.studies.page import About, render
from floatlens.studies.track import FILE as TRACK
from floatlens.studies.track import open_track, section
from floatlens.trace.attributes import read_attributes
from floatlens.trace.trace import Trace

FILMS = 3_000_000  # maximum bytes per film
TRIED = 40  # questions among which one is sought that every model answers
SHOWN_ERRORS = 20


def make(
    runs: Sequence[Path],
    out: Path,
    *,
    sections: Sequence[Section] | None = None,
    drawn: Path | None = None,
    jobs: int = 1,
    watch: ProgressCallback | None = None,
) -> Path:
    """Write the report of run folders to one HTML file.

    `sections`, with their figures under `drawn`, are built from the runs unless given.
    """
    homes = [folder.path for run in runs for folder in model_runs(run)]
    header = about(runs, homes)
    if sections is not None and drawn is not None:
        return _write(out, header, sections, drawn, homes)
    tracks = {home: open_track(home) for home in homes if (home / TRACK).exists()}
    others = [home for home in homes if home not in tracks]
    names = available(others)
    if not names and not tracks:
        run_names = ", ".join(str(run) for run in runs)
        raise FloatLensError(
            f"{run_names} has nothing to show; create traces (floatlens trace), answers with and without passages "
            "(floatlens eval --both) or a study"
        )
    with tempfile.TemporaryDirectory(prefix="floatlens-report-") as temporary:
        target = Path(temporary)
        found = analyse_findings(names, others, target, jobs, watch)
        for place, each in enumerate(tracks.values(), 1):
            found.append(section(each, target, f"track-{place}" if place > 1 else "track"))
        if tracks and not names:
            header.tracked = [text for each in found for text in each.seen]
            header.title = "What became of the sink over training"
        return _write(out, header, found, target, homes)


def _write(out: Path, header: About, sections: Sequence[Section], drawn: Path, homes: Sequence[Path]) -> Path:
    shown = shown_traces(homes)
    opening = draw_opening(homes, shown, drawn / FIGURES) if not header.tracked else None
    text = render(header, sections, drawn / FIGURES, films(homes, shown), opening)
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogatepass")
    return out


def films(homes: Sequence[Path], shown: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return the films: a text without and with the sink's token, then the same question for an MDM and an ARM."""
    traces = switch_traces(homes)[0]
    ends = [open_track(home)["checkpoint"].values[[0, -1]] for home in homes if (home / TRACK).exists()]
    if ends:  # the first and the last checkpoint
        traces += [trace for name in ends[0] for trace in shown if trace.model == name]
    for kind in () if ends else ("mdm", "arm") if traces else ("mdm", "mdm", "arm"):
        traces += [trace for trace in shown if trace.kind == kind and trace not in traces][:1]
    return [film(trace, budget=FILMS) for trace in traces if trace.has_head_mean("received")]


def shown_traces(homes: Sequence[Path]) -> list[Trace]:
    """Return traces of one question, one per model: with passages and answered correctly where there is such a question."""
    found: dict[str, dict[str, Path]] = {}
    for home in homes:
        for name, path in RunFolder.open(home).samples():
            found.setdefault(name, {})[str(read_attributes(path, path).get("model", ""))] = path
    most = max((len(paths) for paths in found.values()), default=0)
    wanted = CONDITIONS["passages"]
    names = sorted((name for name in found if len(found[name]) == most), key=lambda name: condition_of(name) != wanted)
    first: list[Trace] = []
    for name in names[:TRIED]:
        traces = [Trace.open(path) for path in found[name].values()]
        if all(is_right(trace) for trace in traces):
            return traces
        first = first or traces
    return first


def is_right(trace: Trace) -> bool:
    """Whether the answer contains one of the expected ones."""
    return score(trace.answer, trace.answers)["accuracy_words"] == 1.0


def about(runs: Sequence[Path], homes: Sequence[Path]) -> About:
    """Collect the summary from the run folders."""
    folders = [RunFolder.open(home) for home in homes]
    answers = answers_in(folders)
    models: dict[str, dict[str, str]] = {}
    found = About("")
    settings: dict[str, str] = {}
    data: dict[str, None] = dict.fromkeys(str(d) for d in answers["data"]) if "data" in answers else {}
    for folder in folders:
        for _, path in folder.samples():
            found.traces += 1
            attributes = read_attributes(path, path)
            models.setdefault(str(attributes.get("model", "")), _of_trace(attributes))
            settings |= _sampler(attributes)
    if "kind" in answers:
        for model, part in answers.groupby("model", sort=False):
            kind = str(part["kind"].iloc[0]).upper()
            models.setdefault(str(model), {"name": str(model), "kind": kind, "family": "", "layers": ""})
    errors = [error for folder in folders for error in folder.errors()]
    found.models = sorted(models.values(), key=lambda model: model["kind"] != "MDM")
    found.data, found.answers, found.settings = list(data), len(answers), settings
    found.errors, found.errors_left_out = errors[:SHOWN_ERRORS], max(0, len(errors) - SHOWN_ERRORS)
    names = [short(model["name"]) for model in found.models]
    found.title = f"Where attention floats in {listed(names)}" if names else "FloatLens report"
    for run in runs:
        manifest = RunFolder.open(run).manifest
        found.manifests.append((Path(run).name, json.dumps(manifest, indent=2, ensure_ascii=False)))
        results = _results(Path(run))
        found.failed |= results.get("failed", {})
        found.notes += results.get("notes", [])
    return found


def _of_trace(attributes: dict[str, Any]) -> dict[str, str]:
    return {
        "name": str(attributes.get("model", "")),
        "kind": str(attributes.get("kind", "")).upper(),
        "family": str(attributes.get("family", "")),
        "layers": str(attributes.get("n_layers", "")),
        "revision": str(attributes.get("revision", "")),
    }


def _sampler(attributes: dict[str, Any]) -> dict[str, str]:
    """Return the sampler's settings by model."""
    given = json.loads(str(attributes.get("settings", "{}")))
    text = ", ".join(f"{key} {value}" for key, value in given.items() if value is not None)
    return {f"{short(str(attributes.get('model', '')))} ({attributes.get('sampler', '')})": text}


def _results(run: Path) -> dict[str, Any]:
    """Return what a study says of itself: failed parts, questions left out, notes."""
    path = run / "results.json"
    found = untrusted.read_json(path, run) if path.exists() else {}
    failed, notes = found.get("failed", {}), found.get("notes", [])
    texts = isinstance(failed, dict) and isinstance(notes, list)
    if not texts or not all(isinstance(text, str) for text in (*failed.values(), *notes)):
        raise FloatLensError(f"{path}: failed and notes must be texts; finish the run again with --resume")
    return {"failed": failed, "notes": notes}
