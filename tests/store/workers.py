"""Workers and jobs that need no model: what an engine does with processes that die can be seen without one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from floatlens.errors import FloatLensError
from floatlens.store.engine import WorkerDied
from floatlens.store.storage import Storage


@dataclass(frozen=True)
class Numbers:
    """A job: some numbers."""

    numbers: tuple[int, ...]

    def split(self) -> Sequence[Numbers]:
        return [replace(self, numbers=(number,)) for number in self.numbers]


class Square(NamedTuple):
    number: int
    square: int
    pid: int


def jobs(count: int, size: int = 2) -> list[Numbers]:
    return [Numbers(tuple(range(i, min(count, i + size)))) for i in range(0, count, size)]


@dataclass
class Squares:
    """Returns the square of each number, with the process that made it.

    `deadly` numbers kill the process each time, `once` only the first time, `wrong` raise an error that stops the run.
    """

    location: str
    pause: float = 0.0
    deadly: tuple[int, ...] = ()
    once: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()

    def __call__(self, job: Numbers) -> list[Square]:
        time.sleep(self.pause)
        storage = Storage(self.location)
        for number in job.numbers:
            if number in self.wrong:
                raise FloatLensError(f"number {number} cannot be squared")
            if number in self.deadly or (number in self.once and not storage.exists(f"died-{number}")):
                storage.write(f"died-{number}", b"")
                os.kill(os.getpid(), signal.SIGKILL)
        return [Square(number, number**2, os.getpid()) for number in job.numbers]


def squares(done: Iterable[tuple[Numbers, list[Square] | WorkerDied]]) -> dict[int, int]:
    """The squares by number; every number was squared once."""
    found = [each for _, made in done if not isinstance(made, WorkerDied) for each in made]
    assert len({each.number for each in found}) == len(found)
    return {each.number: each.square for each in found}
