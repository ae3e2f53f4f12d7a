"""The thread that runs models, in the order of requests.

Observing and intervening change a model's config while a pass is computed, so two runs of one model must never overlap;
and two runs at once on one machine would both be slow. A run is stopped between two steps.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from floatlens.errors import FloatLensError

Messages = Callable[[], Iterator[dict[str, Any]]]


@dataclass(eq=False)
class LiveJob:
    """A queued or active run: `messages` starts it, `send` receives each message (called from the model thread)."""

    id: int
    messages: Messages
    send: Callable[[dict[str, Any]], None]
    over: Callable[[], None] = lambda: None
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Stop before the next step, or do not start."""
        self.stopped.set()


class ModelThread:
    """A queue of jobs and the thread that runs them. The thread starts with the first job."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.jobs: deque[LiveJob] = deque()
        self.current: LiveJob | None = None
        self.something = threading.Condition()
        self.thread: threading.Thread | None = None
        self.closed = False

    def submit(self, job: LiveJob) -> int:
        """Queue a job; return the number of jobs before it."""
        with self.something:
            if self.closed:
                raise FloatLensError("the server is shutting down")
            waiting = sum(not other.stopped.is_set() for other in self.jobs)
            if waiting >= self.waiting:
                raise FloatLensError(f"{waiting} runs are already queued; try again when some have finished")
            ahead = waiting + (self.current is not None)
            self.jobs.append(job)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="floatlens-worker", daemon=True)
                self.thread.start()
            self.something.notify()
            return ahead

    def close(self, patience: float = 10.0) -> None:
        """Stop all jobs and wait for the current step: a program that exits in the middle of one may crash."""
        with self.something:
            self.closed = True
            for job in (*self.jobs, *filter(None, [self.current])):
                job.stop()
            self.something.notify()
        if self.thread is not None:
            self.thread.join(patience)

    def _work(self) -> None:
        while True:
            with self.something:
                self.something.wait_for(lambda: self.jobs or self.closed)
                if self.closed:
                    return
                self.current = job = self.jobs.popleft()
            try:
                perform(job)
            finally:
                self.current = None
                job.over()


def perform(job: LiveJob) -> None:
    """Run a job; an error becomes a message to the page, and the thread continues."""
    if job.stopped.is_set():
        return job.send({"type": "stopped", "id": job.id})
    try:
        with closing(job.messages()) as messages:  # type: ignore[type-var]
            for message in messages:
                if job.stopped.is_set():
                    return job.send({"type": "stopped", "id": job.id})
                job.send(message)
    except FloatLensError as error:
        job.send({"type": "error", "id": job.id, "message": " ".join(str(error).split())})
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        job.send({"type": "error", "id": job.id, "message": f"the run failed: {text} (a bug: see the terminal)"})
