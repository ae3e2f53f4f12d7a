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
from typing import Any, Generic, Protocol, TypeVar

from floatlens.errors import FloatLensError

MAX_TRIES = 3  # workers that may die with a job before the job is given up
STARTED = "floatlens: started"  # received from a worker that is ready, or has started a job
# Called with a label and the number of items, if known; returns a function to call once per finished item.
ProgressCallback = Callable[[str, int | None], Callable[[], None]]


def as_one(watch: ProgressCallback | None, label: str, total: int | None) -> ProgressCallback | None:
    """Return a callback that shows several parts as one."""
    advance = watch(label, total) if watch else None
    return (lambda *_: advance) if advance else None


class EngineJob(Protocol):
    """A unit of work that can be sent to another process."""

    def split(self) -> Sequence[EngineJob]:
        """The job in its smallest parts: itself, if it is one."""
        ...


J = TypeVar("J", bound=EngineJob)
R = TypeVar("R")


@dataclass(frozen=True)
class JobFailure:
    """The result of a job that every worker died with."""

    reason: str


class WorkerDied(Exception):
    """Raised when something is received from a worker that is gone; says how it ended."""


@dataclass(eq=False)
class RemoteWorker:
    """A worker elsewhere, and the jobs sent to it with the number of their tries; it works on the first."""

    number: int
    jobs: list[tuple[Any, int]] = field(default_factory=list)
    ready: bool = True  # to take jobs
    started: bool = False  # the first job; a job that was not started is not to blame for the worker's death

    def send(self, job: Any) -> None:
        raise NotImplementedError

    def receive(self) -> Any:
        """The result of the first job, or STARTED; raises WorkerDied."""
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

    def run(self, worker: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[J, R | JobFailure]]:
        """Call the worker with each job; yields each job with its result, in any order."""
        todo = JobQueue(jobs)
        if todo.empty():
            return
        if self._worker is not worker:
            self._stop_workers()
        pool, self._worker = self._pool, worker
        deaths = 0  # since the last result
        complete = False
        try:
            pool += [self.start_worker(worker, number) for number in range(len(pool), self.workers)]
            while True:
                for filled in range(self.queued):
                    for each in pool:
                        if each.ready and len(each.jobs) == filled and (entry := todo.take()) is not None:
                            each.jobs.append(entry)
                            each.send(entry[0])
                if not any(each.jobs for each in pool) and any(each.ready for each in pool):
                    complete = True
                    return
                for each in self.wait_for([each for each in pool if each.jobs or not each.ready]):
                    try:
                        result = each.receive()
                    except WorkerDied as death:
                        each.stop()
                        deaths += 1
                        if deaths > MAX_TRIES * self.workers + MAX_TRIES:
                            raise FloatLensError(
                                f"workers keep dying (the last {death}); try fewer --workers or a smaller --batch-size"
                            ) from None
                        yield from todo.put_back(each.jobs, f"its worker {death}", each.started)
                        pool[pool.index(each)] = self.start_worker(worker, each.number)
                        continue
                    if isinstance(result, str) and result == STARTED:
                        continue
                    deaths = 0
                    job, _ = each.jobs.pop(0)
                    if isinstance(result, WorkerError):
                        result.reraise()
                    yield job, result
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


class JobQueue(Generic[J]):
    """The remaining jobs: first those to repeat, then the others, taken from the iterable when needed."""

    def __init__(self, jobs: Iterable[J]) -> None:
        self.jobs = iter(jobs)
        self.repeated: list[tuple[J, int]] = []

    def take(self) -> tuple[J, int] | None:
        """A job and how often it was tried, or None if none is left."""
        if self.repeated:
            return self.repeated.pop(0)
        job = next(self.jobs, None)
        return None if job is None else (job, 0)

    def empty(self) -> bool:
        """Whether no job is left: then no worker needs to start."""
        entry = self.take()
        if entry is not None:
            self.repeated.insert(0, entry)
        return entry is None

    def put_back(
        self, entries: Sequence[tuple[J, int]], reason: str, started: bool = True
    ) -> list[tuple[J, JobFailure]]:
        """Put back the jobs of a worker that died during the first of them.

        Returns that job with its failure if it should not be tried again. A batch that fails is split first, to find the
        failing sample. A job that the worker had not `started` is not counted as failed.
        """
        if not started or not entries:
            self.repeated[:0] = entries
            return []
        (job, tries), *others = entries
        self.repeated += others
        if tries + 1 < MAX_TRIES:
            self.repeated.insert(0, (job, tries + 1))
            return []
        parts: Sequence[Any] = job.split()
        if len(parts) > 1:
            self.repeated[:0] = [(part, MAX_TRIES - 1) for part in parts]
            return []
        return [(job, JobFailure(f"{reason}, {tries + 1} times"))]


@dataclass(frozen=True)
class WorkerError:
    """An error of a worker, sent back to the process that sent the job."""

    error: BaseException
    text: str

    def reraise(self) -> None:
        """Raise the error here; one that is not meant for users carries the worker's traceback."""
        if not isinstance(self.error, FloatLensError | OSError):
            self.error.add_note(f"in a worker:\n{self.text}")
        raise self.error


def run_job(worker: Callable[[J], R], job: J) -> R | WorkerError:
    """Run a job in a worker process; an error is returned as a value that can be sent."""
    try:
        return worker(job)
    except Exception as error:
        return WorkerError(_make_sendable(error), traceback.format_exc())


def _make_sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # our own bytes; this only tests whether the error can be pickled
        return error
    except Exception:  # some errors cannot be rebuilt from their arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
