"""Functions shared by commands: checks before the work, the run folder, progress, and output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from floatlens.evaluation.sources import DataSource
    from floatlens.findings.finding import Finding
    from floatlens.options import Data, Load, Run, Sampling
    from floatlens.store.engine import ProgressCallback
    from floatlens.store.folder import RunFolder

QUIET, EVERY = 5.0, 60.0  # seconds of work that prints no line, and between two lines of a part
WIDE = 10_000  # width of tables that are written to a file or a pipe, so that nothing is cut
COLOURS = {"holds": "green", "fails": "red"}  # of verdicts; the others: yellow


def check_device(loading: Load, engine: str = "local") -> None:
    """Raise an error for a device that is not there, before a run folder is made; workers on Ray may have it."""
    import torch

    device = loading.device_map
    spread = device in ("auto", "balanced", "balanced_low_0", "sequential")
    if not isinstance(device, str) or spread or engine.startswith("ray"):
        return
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FloatLensError(f"--device {device} cannot be used on this machine: {reason}; use --device cpu") from None


def check_answered(answers: pd.DataFrame) -> None:
    """Raise an error if no question could be answered."""
    if answers["error"].notna().all():
        raise FloatLensError(f"no question could be answered; the first failed because: {answers['error'].iloc[0]}")


@contextmanager
def experiment(
    command: str,
    models: Sequence[str],
    sources: Sequence[DataSource],
    out: str | None,
    options: tuple[Data, Sampling, Load, Run],
    **asked: Any,
) -> Iterator[tuple[dict[str, Any], RunFolder | None, dict[str, Any]]]:
    """Open the run folder, if there is one, and lock it until the block ends; then write the results to it.

    `asked` has the data sets and further settings, for the manifest. Yields the results, for the block to fill, the folder,
    and the worker, engine and progress for the loop of experiments.
    """
    from floatlens.evaluation.loop import ModelWorker
    from floatlens.evaluation.sources import problems_of, write_problems
    from floatlens.models.checkpoint import find
    from floatlens.options import recorded
    from floatlens.store import manifest
    from floatlens.store.engine import make_engine
    from floatlens.store.folder import RunFolder

    reading, sampling, loading, running = options
    asked |= {"models": list(models), "read": reading, "sampling": sampling, "load": loading, "run": running}
    folder, found = None, dict[str, Any]()
    if out is not None:
        about = manifest.describe(
            command,
            asked,
            checkpoints=[find(model, loading) for model in models],
            data=[*asked["data"], *([reading.corpus] if reading.corpus else [])],
        )
        folder = RunFolder.create(out, about, resume=running.resume)
    with folder or nullcontext(), bar() as watch:
        yield found, folder, {"worker": ModelWorker(loading), "engine": make_engine(running), "watch": watch}
        found["problems"], found["settings"] = problems_of(sources), recorded(sampling)
        found["gold_dropped"] = {source.label: source.gold_dropped for source in sources if source.gold_dropped}
        if folder is not None:  # its results have no path: runs are shared
            write_problems(folder, sources)
            folder.write_text("results.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
            folder.finish()
        found["run"] = folder.location if folder is not None else None
    print_notes(f"{label}: {text}" for label, text in found["problems"].items())


def check_run(running: Run, out: str | None, *, trace: bool = False) -> None:
    """Raise an error for an unknown engine, and if there is nothing to resume or no place for traces."""
    from floatlens.store.engine import make_engine

    make_engine(running)
    if out is None and (running.resume or trace):
        raise FloatLensError(f"{'--resume' if running.resume else '--trace'} needs --out, the folder of the run")


def judge(finding: Finding, answers: pd.DataFrame, folder: RunFolder | None, stem: str, **settings: Any) -> list[Any]:
    """Measure a finding on answers, and return the verdicts on the claims that can be tested with them.

    Figures and claims are written to the run folder, if there is one.
    """
    from floatlens.findings.verdict import write_claims

    measured = finding.measure(answers, **settings)
    verdicts = [verdict for verdict in finding.claims(measured) if verdict.n]
    if folder is not None:
        draw(finding, folder.path / "figures" / stem, lambda view: measured)
        write_claims(folder.path / "claims.json", verdicts)
    return [verdict.to_dict() for verdict in verdicts]


def draw(finding: Finding, target: Any, source: Callable[[str], Any], **settings: Any) -> list[Any]:
    """Draw all views of a finding from what `source` returns for each; return the paths of the written files."""
    from floatlens.findings import style

    written = []
    for view in finding.views:
        path = target if view == finding.views[0] else target.with_name(f"{target.name}-{view}")
        numbers = finding.figure(source(view), view=view, backend="none", **settings)
        written += style.save(finding.figure(source(view), view=view, **settings), numbers, path)
    return written


@contextmanager
def bar(expected: int = 0) -> Iterator[ProgressCallback]:
    """Show progress with the rate and the remaining time on standard error.

    A terminal has a bar for the total and one for each active part; `expected` is the total, if it is known. Elsewhere there
    is a line per finished part, and one per minute for each active part, whether it advances or not; work of a few seconds
    prints nothing. Yields a function that starts a part (its label, its total or None) and returns the function that
    advances it by one.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn

    first, barred, _, left = Progress.get_default_columns()
    columns = [first, barred, MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), left]
    terminal, began, lock, ended = sys.stderr.isatty(), time.monotonic(), Lock(), Event()
    how: dict[str, Any] = {"transient": True, "disable": not terminal, "get_time": lambda: time.monotonic()}
    progress = Progress(*columns, console=Console(stderr=True), **how)
    whole, begun = progress.add_task("total", total=expected, rate=""), 0

    def say(task: Task) -> None:
        seconds, of = task.elapsed or 0.0, "" if task.total is None else f" of {task.total}"
        rate = rate_of(task.completed, seconds) if task.completed else f"for {spell_time(seconds)}"
        rest = seconds / task.completed * (task.total - task.completed) if task.total and task.completed else 0.0
        ending = f", {spell_time(rest)} left" if rest else ""
        print(f"{task.description}: {task.completed}{of}, {rate}{ending}", file=sys.stderr, flush=True)

    def watch(about: str, total: int | None) -> Callable[[], None]:
        nonlocal begun
        with lock:
            progress.add_task(about, total=total, rate="")
            task, begun = progress.tasks[-1], begun + (total or 0)
            progress.update(whole, total=max(expected, begun))

        def advance() -> None:
            with lock:
                progress.update(whole, advance=1)
                rate = rate_of(task.completed + 1, task.elapsed or 0.0)
                shown = task.completed + 1 != total  # a finished part makes room
                progress.update(task.id, advance=1, rate=rate, visible=shown)
                if not (terminal or shown) and time.monotonic() - began >= QUIET:
                    say(task)

        return advance

    def every_minute() -> None:
        while not ended.wait(EVERY):
            with lock:
                for task in progress.tasks[1:]:
                    if task.visible:
                        say(task)

    if not terminal:
        Thread(target=every_minute, daemon=True).start()
    try:
        with progress:
            yield watch
    finally:
        ended.set()


def rate_of(number: float, seconds: float) -> str:
    """Return the mean rate since the start, which jumps less than the momentary one."""
    if not seconds:
        return ""
    return f"{number / seconds:.1f}/s" if number > seconds else f"{seconds / number:.0f} s each"


def spell_time(seconds: float) -> str:
    """Return a duration as a reader says it.

    >>> spell_time(0.42), spell_time(42.4), spell_time(100), spell_time(5000)
    ('0.42 s', '42 s', '2 min', '1.4 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 4800 else f"{seconds / 3600:.1f} h"


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], console: Console | None = None, **style: Any
) -> None:
    """Print rows, whole: long cells are folded, and markup in texts is shown as it is."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    shown = Table(*map(escape, columns), show_header=bool(columns), **style)
    for row in rows:
        shown.add_row(*(cell if isinstance(cell, Text) else Text(spell(cell)) for cell in row))
    for column in shown.columns:
        column.overflow = "fold"
    (console or make_console()).print(shown)


def print_records(records: Sequence[Mapping[Any, Any]], columns: Sequence[str]) -> None:
    """Print a table of some fields of records, if there are any."""
    if records:
        rows = [[record.get(name) for name in columns] for record in records]
        print_table([name.replace("_", " ") for name in columns], rows)


def spell(value: Any) -> str:
    """Return a table cell: three decimals of a number, a difference with its interval, a dash for nothing.

    >>> spell(0.12345), spell({"value": 0.5, "interval": [0.25, 0.75]}), spell(None), spell(3)
    ('0.123', '+0.50 [+0.25, +0.75]', '–', '3')
    """
    if isinstance(value, dict) and value["value"] is not None:
        middle, low, high = (round(each, 2) + 0.0 for each in (value["value"], *value["interval"]))  # never -0.00
        return f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]"
    if value is None or value != value or isinstance(value, dict):
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def make_console(**settings: Any) -> Console:
    """Return the console of a command's output: as wide as its longest line if it is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False, **settings)
    return console if console.is_terminal else Console(highlight=False, width=WIDE, **settings)


def print_lines(lines: Iterable[str], **console: Any) -> None:
    """Print lines as they are, without markup."""
    shown = make_console(**console)
    for line in lines:
        shown.print(line, markup=False, soft_wrap=True)


def print_notes(lines: Iterable[str]) -> None:
    """Print lines to standard error."""
    print_lines(lines, stderr=True)


def print_json(found: Mapping[str, Any]) -> None:
    """Print one JSON object and nothing else."""
    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")


def print_claims(claims: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per claim: its models, its sentence, its verdict, and the reason if there is one."""
    for c in claims:
        reason = f" ({c['reason']})" if c["reason"] else ""
        print_lines([f"{', '.join(c['models'])}: {c['claim']}: {c['verdict']}{reason}"])
