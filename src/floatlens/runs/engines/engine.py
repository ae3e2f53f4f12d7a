"""What an engine is: it has jobs done, by one process or by many, and says as each is done.

A job is a batch that was planned before it was given out, so that who does it changes no number. A worker is made once
in each process and keeps the model. Results go from the worker straight to the run folder.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from floatlens.errors import FloatLensError

AHEAD = 2  # jobs given to a worker at a time: one to do and one to go on with, so that memory is bounded
TRIES = 3  # workers that may die over a job before the job is to blame


class Job(Protocol):
    """Something to do that can be sent to another process."""

    def split(self) -> Sequence[Job]:
        """The job in its smallest parts: itself, if it is one."""
        ...


J = TypeVar("J", bound=Job)


@dataclass(frozen=True)
class Died:
    """What an engine gives for a job that no worker survived."""

    reason: str


class Engine(Protocol):
    """Does jobs. The worker is called with each job, in whatever process; results come in any order."""

    workers: int

    @property
    def inside(self) -> bool:
        """Whether the worker runs in this process."""
        ...

    def run(self, worker: Callable[[J], Any], jobs: Iterable[J]) -> Iterator[tuple[J, Any]]: ...

    def staying(self) -> AbstractContextManager[Any]:
        """Within, workers stay from one run to the next as long as it is the same worker: models are loaded once."""
        ...


class Staying:
    """The base of engines with workers of their own: within `staying`, these are kept from one run to the next."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise FloatLensError(f"workers {self.workers} is not a positive number; use --workers 1")
        self._hands: list[Any] = []
        self._stay = False

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Keep the workers between runs."""
        self._stay = True
        try:
            yield
        finally:
            self._stay = False
            self._dismiss()
            self._leave()

    def _dismiss(self) -> None:
        """Stop the workers."""
        for hand in self._hands:
            hand.stop()
        self._hands.clear()

    def _leave(self) -> None:
        """End what the engine began beside its workers."""


class Queue:
    """Jobs yet to be done: those to be tried again first, then the rest, each taken when there is room for it."""

    def __init__(self, jobs: Iterable[Any]) -> None:
        self.fresh = iter(jobs)
        self.again: list[tuple[Any, int]] = []

    def next(self) -> tuple[Any, int] | None:
        """A job and how often it was tried, or None if there is none left."""
        if self.again:
            return self.again.pop(0)
        job = next(self.fresh, None)
        return None if job is None else (job, 0)

    def empty(self) -> bool:
        """Whether nothing is left to do: then no worker need be started."""
        given = self.next()
        if given is not None:
            self.again.insert(0, given)
        return given is None

    def died(self, flight: Sequence[tuple[Any, int]], reason: str) -> list[tuple[Any, Died]]:
        """A worker died over the first of these jobs. Returns the job if no worker is to be risked on it again."""
        if not flight:
            return []
        (job, tries), *others = flight
        self.again += others
        if tries + 1 < TRIES:
            self.again.insert(0, (job, tries + 1))
            return []
        parts = job.split()
        if len(parts) > 1:  # one sample of the batch is to blame: find it
            self.again[:0] = [(part, TRIES - 1) for part in parts]
            return []
        return [(job, Died(f"{reason}, {tries + 1} times"))]


@dataclass(frozen=True)
class Raised:
    """An error that a worker met, as it comes back to the process that gave out the job."""

    error: BaseException
    text: str

    def again(self) -> None:
        """Raise it here; what is not meant for users carries the worker's traceback."""
        if not isinstance(self.error, FloatLensError | OSError):
            self.error.add_note(f"in a worker:\n{self.text}")
        raise self.error


def attempt(worker: Callable[[Any], Any], job: Any) -> Any:
    """Do a job in a worker process; an error becomes a value that can be sent."""
    try:
        return worker(job)
    except Exception as error:
        return Raised(_sendable(error), traceback.format_exc())


def _sendable(error: Exception) -> Exception:
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # some errors cannot be made again from their arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
