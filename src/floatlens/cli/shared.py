"""Functions shared by eval, trace, stress and ablate: checks before and after the work, run folder, and output."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from floatlens.evaluation.planning import AnswerSettings
    from floatlens.evaluation.sources import DataSource, EvaluationPlan
    from floatlens.findings.finding import Finding
    from floatlens.options import Load
    from floatlens.store.engine import ProgressCallback
    from floatlens.store.folder import RunFolder

WIDE = 10_000  # width of tables that are written to a file or a pipe, so that nothing is cut


def check_settings(plan: EvaluationPlan, models: Load, askings: Sequence[AnswerSettings] = ()) -> None:
    """Raise an error for invalid models and settings, before any weights are read."""
    from floatlens.lens import Lens

    for model in plan.models:
        lens = Lens.find(model, models)
        for asking in askings or [plan.asking]:
            lens.settings(**asking.generation())


def check_answered(answers: pd.DataFrame) -> None:
    """Raise an error if no question could be answered."""
    if answers["error"].notna().all():
        raise FloatLensError(f"no question could be answered; the first failed because: {answers['error'].iloc[0]}")


@contextmanager
def open_run(
    out: str | None, command: str, plan: EvaluationPlan, models: Load, also: dict[str, Any], resume: bool
) -> Iterator[RunFolder | None]:
    """Open the run folder, if there is one, and lock it until the block ends."""
    if out is None:
        yield None
        return
    from floatlens.models.checkpoint import find
    from floatlens.options import recorded
    from floatlens.store import manifest
    from floatlens.store.folder import RunFolder

    about = manifest.describe(
        command,
        {**plan.recorded(), "load": recorded(models), **also},
        checkpoints=[find(model, models) for model in plan.models],
        data=[*plan.data, *([plan.corpus] if plan.corpus else [])],
        template=plan.asking.template.text,
        seeds={"seed": plan.asking.seed, "draw": plan.seed},
    )
    with RunFolder.create(out, about, resume=resume) as folder:
        yield folder


def judge(finding: Finding, answers: pd.DataFrame, folder: RunFolder | None, stem: str, **settings: Any) -> list[Any]:
    """Measure a finding on answers, and return the verdicts on the claims that can be tested with them.

    Figures and claims are written to the run folder, if there is one.
    """
    from floatlens.findings import style
    from floatlens.findings.verdict import write_claims

    measured = finding.measure(answers, **settings)
    verdicts = [verdict for verdict in finding.claims(measured) if verdict.n]
    if folder is not None:
        for view in finding.views:
            name = stem if view == finding.views[0] else f"{stem}-{view}"
            numbers = finding.figure(measured, view=view, backend="none")
            style.save(finding.figure(measured, view=view), numbers, folder.path / "figures" / name)
        write_claims(folder.path / "claims.json", verdicts)
    return [verdict.to_dict() for verdict in verdicts]


def finish_run(
    folder: RunFolder | None, plan: EvaluationPlan, sources: Sequence[DataSource], found: dict[str, Any]
) -> None:
    """Add problems, settings and the run to the numbers; write them to the run folder, and close it."""
    from floatlens.evaluation.sources import problems_of, write_problems

    found["problems"], found["settings"] = problems_of(sources), plan.asking.recorded()
    found["run"] = folder.location if folder is not None else None
    if folder is not None:
        write_problems(folder, sources)
        kept = {name: value for name, value in found.items() if name != "run"}  # runs are shared: no paths of the user
        folder.write_text("results.json", json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
        folder.finish()


def records_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, with None instead of NaN."""
    rows = table.to_dict("records")
    return [{str(k): None if isinstance(v, float) and v != v else v for k, v in row.items()} for row in rows]


@contextmanager
def bar(unit: str) -> Iterator[ProgressCallback]:
    """A progress bar with the rate and the remaining time, if standard error is a terminal.

    Yields a function that starts a bar (its label, its total or None) and returns the function that advances it by one.
    """
    if not sys.stderr.isatty():
        yield lambda about, total: lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # The mean rate since the start: the momentary rate of batches jumps.
    rate = TextColumn("{task.fields[rate]}")
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def watch(about: str, total: int | None) -> Callable[[], None]:
            task, began, done = progress.add_task(about, total=total, rate=""), time.monotonic(), count(1)

            def advance() -> None:
                seconds = time.monotonic() - began
                progress.update(task, advance=1, rate=f"{next(done) / seconds:.1f} {unit}/s" if seconds else "")

            return advance

        yield watch


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of texts, whole: their markup is shown as it is, and long cells are folded."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table()
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    console.print(shown)


def make_console() -> Console:
    """Return the console of a command's output: as wide as its longest line if it is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def print_json(found: Mapping[str, Any]) -> None:
    """Print one JSON object and nothing else."""
    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")


def print_notes(lines: Sequence[str]) -> None:
    """Print notes to standard error, without markup."""
    from rich.console import Console

    for line in lines:
        Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def noted_warnings() -> Iterator[None]:
    """Print warnings about the user's input as notes, without the line of code that issued them."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        yield
    print_notes([f"warning: {each.message}" for each in found if each.category is UserWarning])


def claim_lines(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per claim: its models, its sentence, its verdict, and the reason if there is one."""
    return [
        f"{', '.join(c['models'])}: {c['claim']}: {c['verdict']}" + (f" ({c['reason']})" if c["reason"] else "")
        for c in claims
    ]


def problem_lines(problems: Mapping[str, str]) -> list[str]:
    """Return one line per data set with lines that were skipped."""
    return [f"{label}: {text}" for label, text in problems.items()]
