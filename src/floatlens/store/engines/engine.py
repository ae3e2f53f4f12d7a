"""The interface of engines: an engine runs jobs, in this process or in others, and yields each result as it arrives.

A job is a batch that was planned in advance, so the engine does not affect the numbers. A worker is created once per
process and keeps the model. Workers write results directly to the run folder.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from floatlens.errors import FloatLensError

JOBS_PER_WORKER = 2  # one to run and one to continue with: memory stays bounded
MAX_TRIES = 3  # workers that may die with a job before the job is given up


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


class Engine(Protocol):
    """Runs jobs. The worker is called with each job, in any process; results come in any order."""

    workers: int

    @property
    def in_process(self) -> bool:
        """Whether the worker runs in this process."""
        ...

    def run(self, worker: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[J, R | JobFailure]]:
        """Run the jobs; yields each with its result."""
        ...

    def keep_workers(self) -> AbstractContextManager[None]:
        """Within the block, runs with the same worker use the same processes: models are loaded once."""
        ...


class StoppableWorker(Protocol):
    """A worker that runs elsewhere."""

    def stop(self) -> None: ...


W = TypeVar("W", bound=StoppableWorker)


class WorkerPool(Generic[W]):
    """Base of engines with worker processes, which `keep_workers` keeps from one run to the next."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise FloatLensError(f"workers {self.workers} is not a positive number; use --workers 1")
        self._pool: list[W] = []
        self._keep = False

    @contextmanager
    def keep_workers(self) -> Iterator[None]:
        """Keep the workers between runs."""
        self._keep = True
        try:
            yield
        finally:
            self._keep = False
            self._stop_workers()
            self._shut_down()

    def _stop_workers(self) -> None:
        for worker in self._pool:
            worker.stop()
        self._pool.clear()

    def _shut_down(self) -> None:
        """Stop everything else that the engine started."""


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
        if not started:
            self.repeated[:0] = entries
            return []
        if not entries:
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
