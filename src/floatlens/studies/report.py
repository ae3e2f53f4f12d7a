"""Build the report of one or more run folders: a first picture, films, the sections of the findings, and the settings."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import PowerNorm

from floatlens import untrusted
from floatlens.anchors import find_anchors
from floatlens.errors import FloatLensError
from floatlens.explorer.film import film
from floatlens.files import atomic_write
from floatlens.findings import definitions, draw, style
from floatlens.findings.finding import CONDITIONS
from floatlens.findings.samples import Array
from floatlens.findings.spelling import count, listed, percent
from floatlens.findings.style import short
from floatlens.store.engine import ProgressCallback
from floatlens.store.folder import MANIFEST, RunFolder
from floatlens.store.runs import SWITCH, model_runs
from floatlens.studies.analyse import FIGURES, Section, analyse_findings, answers_in, available, shown_samples
from floatlens.studies.page import render
from floatlens.studies.track import FILE as TRACK
from floatlens.studies.track import open_track, section
from floatlens.trace.attributes import read_attributes
from floatlens.trace.trace import Trace
from floatlens.version import __version__

FILMS = 3_000_000  # maximum bytes per film
SHOWN_ERRORS = 20
STEM, RULE = "opening", "sigma(3)"  # of the first picture
READING = (
    "Rows are steps of writing, columns positions; dark is much attention (mean over heads and deep layers). "
    f"Framed: anchors by {RULE}. Dots: tokens when they are written."
)


def make(
    runs: Sequence[Path],
    out: Path,
    *,
    sections: Sequence[Section] | None = None,
    jobs: int = 1,
    watch: ProgressCallback | None = None,
) -> Path:
    """Write the report of run folders to one HTML file.

    `sections`, with their figures beside the file, are built from the runs unless given.
    """
    homes = [folder.path for run in runs for folder in model_runs(run)]
    header = about(runs, homes)
    with tempfile.TemporaryDirectory(prefix="floatlens-report-") as temporary:
        target = out.parent if sections is not None else Path(temporary)
        if sections is None:
            sections = analyse_runs(runs, homes, header, target, jobs, watch)
        shown = shown_traces(homes)
        opening = draw_opening(homes, shown, target / FIGURES) if not header["tracked"] else None
        text = render(header, sections, target / FIGURES, films(homes, shown), opening)
    with atomic_write(out) as temporary_file:
        temporary_file.write_text(text, encoding="utf-8", errors="surrogatepass")
    return out


def analyse_runs(
    runs: Sequence[Path],
    homes: Sequence[Path],
    header: dict[str, Any],
    target: Path,
    jobs: int,
    watch: ProgressCallback | None,
) -> list[Section]:
    """Analyse what the runs have data for, also their tracks; a report of tracks alone gets its own title."""
    tracks = [open_track(home) for home in homes if (home / TRACK).exists()]
    others = [home for home in homes if not (home / TRACK).exists()]
    names = available(others)
    if not names and not tracks:
        raise FloatLensError(
            f"{', '.join(map(str, runs))} has nothing to show; create traces (floatlens trace), answers with and without "
            "passages (floatlens eval --both) or a study"
        )
    found = analyse_findings(names, others, target, jobs, watch)
    found += [section(each, target, f"track-{n}" if n > 1 else "track") for n, each in enumerate(tracks, 1)]
    if tracks and not names:
        header["tracked"] = [text for each in found for text in each.seen]
        header["title"] = "What became of the sink over training"
    return found


def about(runs: Sequence[Path], homes: Sequence[Path]) -> dict[str, Any]:
    """Collect the header and the footer of the report from the run folders."""
    folders = [RunFolder.open(home) for home in homes]
    answers = answers_in(homes)
    traces = [read_attributes(path, path) for folder in folders for _, path in folder.samples()]
    models: dict[str, dict[str, str]] = {}
    settings: dict[str, str] = {}
    for trace in traces:
        name = str(trace.get("model", ""))
        facts = {key: str(trace.get(key, "")) for key in ("family", "n_layers")}
        models.setdefault(name, {"name": name, "kind": str(trace.get("kind", "")).upper(), **facts})
        given = json.loads(str(trace.get("settings", "{}")))
        text = ", ".join(f"{key} {value}" for key, value in given.items() if value is not None)
        settings[f"{short(name)} ({trace.get('sampler', '')})"] = text
    for name, kind in zip(answers["model"], answers["kind"], strict=True):
        models.setdefault(str(name), {"name": str(name), "kind": str(kind).upper(), "family": "", "n_layers": ""})
    errors = [error for folder in folders for error in folder.errors()]
    data = list(dict.fromkeys(map(str, answers["data"])))
    ordered = sorted(models.values(), key=lambda model: model["kind"] != "MDM")
    names = listed([short(model["name"]) for model in ordered])
    counts = [count(len(models), "model"), count(len(traces), "trace"), count(len(answers), "answer")]
    results = [_results(Path(run)) for run in runs]
    manifests = [(Path(run).name, RunFolder.open(run).manifest) for run in runs]
    return {
        "title": f"Where attention floats in {names}" if names else "FloatLens report",
        "line": ", ".join(counts) + (f" on {listed(data)}" if data else ""),
        "models": ordered,
        "settings": settings,
        "errors": errors[:SHOWN_ERRORS],
        "errors_left_out": max(0, len(errors) - SHOWN_ERRORS),
        "manifests": [(name, json.dumps(text, indent=2, ensure_ascii=False)) for name, text in manifests],
        "failed": {what: reason for failed, _ in results for what, reason in failed.items()},
        "notes": [note for _, notes in results for note in notes],
        "tracked": [],  # the summary of a report on checkpoints, which has no claims
        "version": __version__,
    }


def _results(run: Path) -> tuple[dict[str, str], list[str]]:
    """Return what a study says of itself: failed parts and notes."""
    path = run / "results.json"
    found = untrusted.read_json(path, run) if path.exists() else {}
    failed, notes = found.get("failed", {}), found.get("notes", [])
    texts = isinstance(failed, dict) and isinstance(notes, list)
    if not texts or not all(isinstance(text, str) for text in (*failed.values(), *notes)):
        raise FloatLensError(f"{path}: failed and notes must be texts; finish the run again with --resume")
    return failed, notes


# Which traces are shown


def shown_traces(homes: Sequence[Path]) -> list[Trace]:
    """Return traces of one question, one per model: with passages and answered correctly where there is such a question."""
    return [Trace.open(path) for paths in shown_samples(homes, CONDITIONS["passages"])[:1] for path in paths]


def films(homes: Sequence[Path], shown: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return the films: a text without and with the sink's token, then the same question for an MDM and an ARM."""
    traces = switch_traces(homes)[0]
    ends = [open_track(home)["checkpoint"].values[[0, -1]] for home in homes if (home / TRACK).exists()]
    if ends:  # the first and the last checkpoint
        traces += [trace for name in ends[0] for trace in shown if trace.model == name]
    for kind in () if ends else ("mdm", "arm") if traces else ("mdm", "mdm", "arm"):
        traces += [trace for trace in shown if trace.kind == kind and trace not in traces][:1]
    return [film(trace, budget=FILMS) for trace in traces if trace.has_head_mean("received")]


def switch_traces(homes: Sequence[Path]) -> tuple[list[Trace], str]:
    """The traces of one text without and with the sink's token, of the first model that has them, and the token."""
    for home in homes:
        if (home / SWITCH / MANIFEST).exists():
            run = RunFolder.open(home / SWITCH)
            found = {name: Trace.open(path) for name, path in run.samples()}
            if {"without", "with"} <= set(found) and deep_anchors(found["with"])[
                1
            ].any():  # else there is nothing to see
                tokens = [str(result.value.get("token", "")) for result in run.results()]
                return [found["without"], found["with"]], "".join(tokens[:1])
    return [], ""


def deep_anchors(trace: Trace) -> tuple[Array, Array]:
    """Received attention by step and position, mean over heads and deep half of the layers, and where its anchors are."""
    a_SLT = trace.head_mean("received").values
    a_ST = a_SLT[:, a_SLT.shape[1] // 2 :].mean(axis=1)
    return a_ST, find_anchors(a_ST, RULE, trace.attention_kind)


def draw_opening(homes: Sequence[Path], shown: Sequence[Trace], target: Path) -> dict[str, str] | None:
    """Draw the first picture: the switch, or else the first MDM and the first ARM on one question; None without traces."""
    traces, token = switch_traces(homes)
    titles = [f"without {token!r}", f"with one {token!r}"]
    if traces:
        heading = f"{short(traces[0].model)} reads one text, without and with the token {token!r}"
    else:
        first = {trace.kind: trace for trace in reversed(shown) if trace.has_head_mean("received")}
        traces = [first[kind] for kind in ("mdm", "arm") if kind in first]
        titles = [f"in {short(trace.model)} ({trace.kind.upper()})" for trace in traces]
        heading = "Attention while the models write"
    if not traces:
        return None
    maps = [deep_anchors(trace) for trace in traces]
    moved = [definitions.floating(definitions.anchor_mass(np.nan_to_num(a_ST), on_ST)) for a_ST, on_ST in maps]
    if np.isfinite(moved).all():
        shares = [f"{percent(share)} {title}" for share, title in zip(moved, titles, strict=True)]
        heading = ", ".join(shares).replace(" ", " of the attention on anchors moves ", 1)
        heading = f"In {short(traces[0].model)}, {heading}" if token else heading
    norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(a_ST)) for a_ST, _ in maps))
    cells = []
    with style.sheet():
        figure = style.new_figure(2.5)
        grid = figure.subplots(1, len(traces), squeeze=False)[0]
        for axes, trace, (a_ST, anchors_ST), title in zip(grid, traces, maps, titles, strict=True):
            steps, (S, T) = trace.data["step"].values, a_ST.shape
            mesh = draw.attention_map(axes, a_ST, norm=norm)
            draw.hatch_anchors(axes, anchors_ST)
            draw.commit_front(axes, trace.data["committed_at"].values, steps)
            axes.set_title(title[:1].upper() + title[1:])
            axes.set_xlabel("position")
            where = {"map": title, "step": np.repeat(steps, T), "position": np.tile(np.arange(T), S)}
            what = {"token": trace.texts() * S, "received": a_ST.ravel(), "anchor": anchors_ST.ravel()}
            cells.append(pd.DataFrame(where | what))
        grid[0].set_ylabel("step")
        figure.colorbar(mesh, ax=grid, pad=0.01, aspect=18).set_label("share of attention")
    style.save(figure, pd.concat(cells, ignore_index=True), target / STEM)
    return {"stem": STEM, "title": heading, "reading": READING}
