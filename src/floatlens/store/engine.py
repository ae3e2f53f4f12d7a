"""Engines run jobs, in this process or in others, and yield each result as it arrives.

A job is a batch that was planned in advance, so the engine does not affect the numbers. A worker keeps its model from job to
job and returns the results; the process that sent the jobs writes them.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.options import Run

MAX_TRIES = 3  # workers that may die with a job before the job is given up
# What a worker sends: STARTED when it is ready or starts a job, PROGRESS of a bar, and the end of a job.
STARTED, PROGRESS, DONE, FAILED = "started", "progress", "done", "failed"
# Called with a label and the number of items, if known; returns a function to call once per finished item.
ProgressCallback = Callable[[str, int | None], Callable[[], None]]


def as_one(watch: ProgressCallback | None, label: str, total: int | None) -> ProgressCallback | None:
    """Return a callback that shows several parts as one."""
    advance = watch(label, total) if watch else None
    return (lambda *_: advance) if advance else None


class WorkerDied(FloatLensError):
    """Says how a worker ended; also the result of a job that every worker died with."""


@dataclass(eq=False)
class RemoteWorker:
    """A worker elsewhere, and the jobs sent to it with the number of their tries; it works on the first."""

    number: int
    jobs: list[tuple[Any, int]] = field(default_factory=list)
    ready: bool = True  # to take jobs
    started: bool = False  # the first job; a job that was not started is not to blame for the worker's death

    def send(self, job: Any) -> None:
        raise NotImplementedError

    def receive(self) -> tuple[Any, ...]:
        """What the worker sent: STARTED, DONE and the result, or FAILED and the error; raises WorkerDied."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


@dataclass
class Engine:
    """Runs jobs with `workers` workers; subclasses say how a worker is started and waited for."""

    workers: int = 1
    queued = 2  # jobs per worker, one to run and one to continue with: memory stays bounded
    in_process = False  # whether the worker is called in this process

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise FloatLensError(f"workers {self.workers} is not a positive number; use --workers 1")
        self._pool: list[Any] = []
        self._worker: Callable[[Any], Any] | None = None
        self._keep = False

    def start_worker(self, worker: Callable[[Any], Any], number: int) -> RemoteWorker:
        raise NotImplementedError

    def wait_for(self, workers: Sequence[Any]) -> Sequence[RemoteWorker]:
        """Those of the workers from which something can be received; possibly none."""
        raise NotImplementedError

    def shut_down(self) -> None:
        """Stop everything but workers that the engine started."""

    def run(self, worker: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Call the worker with each job; yields each job with its result, in any order.

        A job that kills its workers is split with its method `split`, if it has one, to find the part that does; the result
        of that part is WorkerDied.
        """
        others = ((job, 0) for job in jobs)
        first = next(others, None)
        if first is None:  # no worker needs to start
            return
        repeated = [first]
        if self._worker is not worker:
            self._stop_workers()
        pool, self._worker = self._pool, worker
        deaths = 0  # since the last result
        complete = False
        try:
            pool += [self.start_worker(worker, number) for number in range(len(pool), self.workers)]
            while True:
                for filled in range(self.queued):
                    for each in (each for each in pool if each.ready and len(each.jobs) == filled):
                        if entry := repeated.pop(0) if repeated else next(others, None):
                            each.jobs.append(entry)
                            each.send(entry[0])
                if not any(each.jobs for each in pool) and any(each.ready for each in pool):
                    complete = True
                    return
                for each in self.wait_for([each for each in pool if each.jobs or not each.ready]):
                    try:
                        kind, *content = each.receive()
                    except WorkerDied as death:
                        each.stop()
                        deaths += 1
                        if deaths > MAX_TRIES * self.workers + MAX_TRIES:
                            raise FloatLensError(
                                f"workers keep dying (the last {death}); try fewer --workers or a smaller --batch-size"
                            ) from None
                        again, lost = try_again(each.jobs, each.started)
                        repeated[:0] = again
                        if lost is not None:
                            yield lost, WorkerDied(f"its worker {death}, {MAX_TRIES} times")
                        pool[pool.index(each)] = self.start_worker(worker, each.number)
                        continue
                    if kind in (DONE, FAILED):
                        deaths = 0
                        job, _ = each.jobs.pop(0)
                        if kind == FAILED:
                            raise content[0]
                        yield job, content[0]
        finally:
            if not (complete and self._keep):  # workers in the middle of a job cannot be kept
                self._stop_workers()
            if not self._keep:
                self.shut_down()

    @contextmanager
    def keep_workers(self) -> Iterator[None]:
        """Within the block, runs with the same worker use the same processes: models are loaded once."""
        self._keep = True
        try:
            yield
        finally:
            self._keep = False
            self._stop_workers()
            self.shut_down()

    def _stop_workers(self) -> None:
        for worker in self._pool:
            worker.stop()
        self._pool.clear()


def try_again(jobs: Sequence[tuple[Any, int]], started: bool) -> tuple[list[tuple[Any, int]], Any]:
    """Return the jobs of a dead worker that are run again, with the number of their tries, and a job that is given up.

    Only the first can be to blame, and only if it was started. It is tried again, then split, then given up.
    """
    if not started or not jobs:
        return list(jobs), None
    (job, tries), *others = jobs
    if tries + 1 < MAX_TRIES:
        return [(job, tries + 1), *others], None
    parts = job.split() if hasattr(job, "split") else [job]
    if len(parts) > 1:
        return [*((part, MAX_TRIES - 1) for part in parts), *others], None
    return others, job


def run_job(worker: Callable[[Any], Any], job: Any) -> tuple[str, Any]:
    """Run a job in a worker process; an error that is not meant for users carries the worker's traceback."""
    try:
        return DONE, worker(job)
    except Exception as error:
        if not isinstance(error, FloatLensError | OSError):
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
        return FAILED, sendable(error)


def sendable(error: Exception) -> Exception:
    """Return the error, or one with its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))  # our own bytes; this only tests whether the error can be pickled
        return error
    except Exception:  # some errors cannot be rebuilt from their arguments
        return RuntimeError(f"{type(error).__name__}: {error}")


def make_engine(run: Run) -> Engine:
    """Return the engine that the options describe; raise an error for invalid ones."""
    from floatlens.store.local import LocalEngine

    count, gpus = 1 if run.workers is None else run.workers, run.gpus_per_worker
    if run.engine == "ray":
        from floatlens.store.ray import RayEngine

        return RayEngine(count, gpus or 0.0)
    if run.engine != "local":
        raise FloatLensError(f"unknown engine {run.engine!r}; use local or ray")
    if gpus is not None and gpus != int(gpus):
        raise FloatLensError(f"the local engine needs whole GPUs, not {gpus}; use --engine ray")
    return LocalEngine(count, None if gpus is None else int(gpus))
