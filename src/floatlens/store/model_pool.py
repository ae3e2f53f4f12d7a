"""Run tasks in parallel processes if the machine has enough cores, or one after another.

A small model uses one core, so each model gets its own process; the processes share only the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from typing import Any, TypeVar

from floatlens.store.progress import ProgressCallback

R = TypeVar("R")
Report = tuple[str, str | None, int | None]  # of a progress bar: its name, its label when it starts, its length
_reports: Queue[Report | None] | None = None  # in a worker: where it reports its progress


def run_all(
    function: Callable[..., R], tasks: Sequence[tuple[Any, ...]], jobs: int, watch: ProgressCallback | None = None
) -> list[R | BaseException]:
    """Call `function(*task, watch=...)` for each task; returns each result, or the exception that a task raised."""
    if jobs <= 1 or len(tasks) <= 1:
        return [_call(function, task, watch) for task in tasks]
    context = multiprocessing.get_context("spawn")
    reports: Queue[Report | None] = context.Queue()
    listener = threading.Thread(target=_forward_reports, args=(reports, watch), daemon=True)
    listener.start()
    found = _run_in_processes(function, tasks, min(jobs, len(tasks)), context, reports)
    for index, result in enumerate(found):
        if isinstance(result, BrokenProcessPool):  # a process that dies also ends the other tasks: repeat them alone
            found[index] = _run_in_processes(function, [tasks[index]], 1, context, reports)[0]
    reports.put(None)
    listener.join()
    return found


def _run_in_processes(
    function: Callable[..., R],
    tasks: Sequence[tuple[Any, ...]],
    count: int,
    context: SpawnContext,
    reports: Queue[Report | None],
) -> list[R | BaseException]:
    with ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(reports,)) as pool:
        futures = [pool.submit(_run_task, function, task) for task in tasks]
        return [future.exception() or future.result() for future in futures]


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _call(function: Callable[..., R], task: tuple[Any, ...], watch: ProgressCallback | None) -> R | BaseException:
    try:
        return function(*task, watch=watch)
    except Exception as error:  # returned, as by a process
        return error


def _start_worker(reports: Queue[Report | None]) -> None:
    global _reports
    _reports = reports
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _run_task(function: Callable[..., R], task: tuple[Any, ...]) -> R:
    return function(*task, watch=_report_progress)


def _report_progress(label: str, total: int | None) -> Callable[[], None]:
    reports = _reports
    assert reports is not None
    name = f"{os.getpid()} {label}"
    reports.put((name, label, total))
    return lambda: reports.put((name, None, None))


def _forward_reports(reports: Queue[Report | None], watch: ProgressCallback | None) -> None:
    """Pass the workers' reports on until None arrives."""
    advance: dict[str, Callable[[], None]] = {}
    while (report := reports.get()) is not None:
        name, label, total = report
        if watch is None:
            continue
        if label is not None:
            advance[name] = watch(label, total)
        else:
            advance[name]()
