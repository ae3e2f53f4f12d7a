"""Build the report of one or more run folders."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.explorer.film import film
from floatlens.files import atomic_write
from floatlens.findings.finding import CONDITIONS, FINDINGS
from floatlens.store.engine import ProgressCallback
from floatlens.store.folder import RunFolder
from floatlens.store.local import run_all
from floatlens.store.runs import model_runs
from floatlens.studies.about import About, about
from floatlens.studies.analyse import FIGURES, analyse, available, shown_samples
from floatlens.studies.page import render
from floatlens.studies.section import Section
from floatlens.trace.trace import Trace

FILMS = 3_000_000  # maximum bytes per film
MOST_FILMS = 3


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
    names = available(homes)
    if not names:
        run_names = ", ".join(str(run) for run in runs)
        raise FloatLensError(
            f"{run_names} holds neither traces nor answers; create some with floatlens trace, eval or study"
        )
    with tempfile.TemporaryDirectory(prefix="floatlens-report-") as temporary:
        target = Path(temporary)
        tasks = [(name, homes, target, shown_samples(homes, CONDITIONS[FINDINGS[name].setting])) for name in names]
        found: list[Any] = run_all(analyse, tasks, jobs, watch)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return _write(out, header, found, target, homes)


def _write(out: Path, header: About, sections: Sequence[Section], drawn: Path, homes: Sequence[Path]) -> Path:
    text = render(header, sections, drawn / FIGURES, films(homes))
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogatepass")
    return out


def films(homes: Sequence[Path]) -> list[dict[str, Any]]:
    """Return films of the same question for each model that was traced on it, MDMs first."""
    shown = shown_samples(homes, CONDITIONS["passages"])
    chosen: dict[str, Trace] = {}
    for home in homes:
        for name, path in RunFolder.open(home).samples():
            if name in shown:
                trace = Trace.open(path)
                chosen.setdefault(trace.model, trace)
    ordered = sorted(chosen.values(), key=lambda trace: trace.kind != "mdm")
    kept = ordered[:MOST_FILMS]
    if len(ordered) > MOST_FILMS and all(trace.kind == "mdm" for trace in kept):
        kept[-1:] = [next((trace for trace in ordered if trace.kind != "mdm"), kept[-1])]
    return [film(trace, budget=FILMS) for trace in kept if trace.has_head_mean("received")]
