"""Several models at once where the machine has cores to spare, one after the other where it has not.

Small models leave all cores but one idle, so each gets a process of its own; processes share nothing but the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from floatlens.runs.progress import Watch

_reports: Any = None  # in a worker: the queue by which it says how far it is


def run_all(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int, watch: Watch | None = None
) -> list[Any]:
    """Call `function(*task, watch=...)` for each task; a result, or the exception that a task ended with."""
    if jobs <= 1 or len(tasks) <= 1:
        return [_tried(function, task, watch) for task in tasks]
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    listener = threading.Thread(target=_listen, args=(reports, watch), daemon=True)
    listener.start()
    found = _in_processes(function, tasks, min(jobs, len(tasks)), context, reports)
    for place, result in enumerate(found):
        if isinstance(
            result, BrokenProcessPool
        ):  # a process that dies takes its neighbours' work along: once more, alone
            found[place] = _in_processes(function, [tasks[place]], 1, context, reports)[0]
    reports.put(None)
    listener.join()
    return found


def _in_processes(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], count: int, context: Any, reports: Any
) -> list[Any]:
    with ProcessPoolExecutor(count, context, initializer=_begin, initargs=(reports,)) as pool:
        futures = [pool.submit(_work, function, task) for task in tasks]
        return [future.exception() or future.result() for future in futures]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tried(function: Callable[..., Any], task: tuple[Any, ...], watch: Watch | None) -> Any:
    try:
        return function(*task, watch=watch)
    except Exception as error:  # as a process would hand it back
        return error


def _begin(reports: Any) -> None:
    global _reports
    _reports = reports
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _work(function: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    return function(*task, watch=_watch)


def _watch(about: str, total: int | None) -> Callable[[], None]:
    name = f"{os.getpid()} {about}"
    _reports.put((name, about, total))
    return lambda: _reports.put((name, None, None))


def _listen(reports: Any, watch: Watch | None) -> None:
    """Hand on what the workers report until there is nothing more."""
    advance: dict[str, Callable[[], None]] = {}
    while (report := reports.get()) is not None:
        name, about, total = report
        if watch is None:
            continue
        if about is not None:
            advance[name] = watch(about, total)
        else:
            advance[name]()
