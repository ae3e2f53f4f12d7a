"""Functions shared by eval, trace, stress and ablate: checks before and after the work, run folder, and output."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from floatlens.evaluation.sources import DataSource
    from floatlens.findings.finding import Finding
    from floatlens.options import Data, Load, Sampling
    from floatlens.store.engine import ProgressCallback
    from floatlens.store.folder import RunFolder

QUIET, EVERY = 5.0, 60.0  # seconds of work that prints no line, and between two lines of a part
WIDE = 10_000  # width of tables that are written to a file or a pipe, so that nothing is cut


def check_settings(models: Sequence[str], loading: Load, *samplings: Sampling) -> None:
    """Raise an error for invalid models and settings, before any weights are read."""
    from floatlens.lens import Lens

    for model in models:
        lens = Lens.find(model, loading)
        for sampling in samplings:
            lens.settings_of((), sampling)


def check_device(loading: Load, engine: str | None = "local") -> None:
    """Raise an error for a device that is not there, before a run folder is made; workers on Ray may have it."""
    import torch

    device = loading.device_map
    if not isinstance(device, str) or device in ("auto", "balanced", "balanced_low_0", "sequential") or engine == "ray":
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
def open_run(
    out: str | None, command: str, models: Sequence[str], asked: dict[str, Any], resume: bool
) -> Iterator[RunFolder | None]:
    """Open the run folder, if there is one, and lock it until the block ends.

    `asked` has the data sets, the values of the options and further settings, for the manifest.
    """
    if out is None:
        yield None
        return
    from floatlens.models.checkpoint import find
    from floatlens.store import manifest
    from floatlens.store.folder import RunFolder

    reading: Data = asked["read"]
    about = manifest.describe(
        command,
        {"models": list(models), **asked},
        checkpoints=[find(model, asked["load"]) for model in models],
        data=[*asked["data"], *([reading.corpus] if reading.corpus else [])],
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
    folder: RunFolder | None, sampling: Sampling, sources: Sequence[DataSource], found: dict[str, Any]
) -> None:
    """Add problems, settings and the run to the numbers; write them to the run folder, and close it."""
    from floatlens.evaluation.sources import problems_of, write_problems
    from floatlens.options import recorded

    found["problems"], found["settings"] = problems_of(sources), recorded(sampling)
    found["gold_dropped"] = {source.label: source.gold_dropped for source in sources if source.gold_dropped}
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
def bar(expected: int = 0) -> Iterator[ProgressCallback]:
    """Show progress with the rate and the remaining time on standard error.

    A terminal has a bar for the total and one for each active part; `expected` is the total, if it is known. Elsewhere there
    is a line per finished part, and one per minute for each active part, whether it advances or not; work of a few seconds
    prints nothing. Yields a function that starts a part (its label, its total or None) and returns the function that
    advances it by one.
    """
    if not sys.stderr.isatty():
        with _lines() as watch:
            yield watch
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    rate = TextColumn("{task.fields[rate]}")
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeElapsedColumn()]
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        whole, begun = progress.add_task("total", total=expected, rate=""), 0

        def watch(about: str, total: int | None) -> Callable[[], None]:
            nonlocal begun
            task, began, done = progress.add_task(about, total=total, rate=""), time.monotonic(), count(1)
            begun += total or 0
            progress.update(whole, total=max(expected, begun))

            def advance() -> None:
                number = next(done)
                progress.update(whole, advance=1)
                shown = number != total  # a finished part makes room
                progress.update(task, advance=1, rate=rate_of(number, time.monotonic() - began), visible=shown)

            return advance

        yield watch


@contextmanager
def _lines() -> Iterator[ProgressCallback]:
    """Progress as lines: one per finished part, and one per minute for each active part."""
    began, active, lock, ended = time.monotonic(), dict[int, Callable[[], None]](), Lock(), Event()

    def watch(about: str, total: int | None) -> Callable[[], None]:
        start, number = time.monotonic(), 0

        def say() -> None:
            seconds, of = time.monotonic() - start, "" if total is None else f" of {total}"
            rate = rate_of(number, seconds) if number else f"for {spell_time(seconds)}"
            left = seconds / number * (total - number) if total and number else 0.0
            ending = f", {spell_time(left)} left" if left else ""
            print(f"{about}: {number}{of}, {rate}{ending}", file=sys.stderr, flush=True)

        def advance() -> None:
            nonlocal number
            with lock:
                number += 1
                if number == total:
                    del active[id(advance)]
                    if time.monotonic() - began >= QUIET:
                        say()

        with lock:
            active[id(advance)] = say
        return advance

    def every_minute() -> None:
        while not ended.wait(EVERY):
            with lock:
                for say in active.values():
                    say()

    Thread(target=every_minute, daemon=True).start()
    try:
        yield watch
    finally:
        ended.set()


def rate_of(number: int, seconds: float) -> str:
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
