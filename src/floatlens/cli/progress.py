"""A progress bar with the rate and the remaining time; hidden if standard error is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from floatlens.store.engine import ProgressCallback


class RateColumn(ProgressColumn):
    """The mean rate since the start, because the momentary rate of batches jumps."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        return Text(f"{task.completed / elapsed:.1f} {self.unit}/s" if elapsed and task.completed else "")


@contextmanager
def bar(unit: str) -> Iterator[ProgressCallback]:
    """Yield a function that starts a bar (its label, its total or None) and returns the function that advances it by one."""
    if not sys.stderr.isatty():
        yield lambda about, total: lambda: None
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(unit),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def watch(about: str, total: int | None) -> Callable[[], None]:
            task = progress.add_task(about, total=total)
            return lambda: progress.advance(task)

        yield watch
