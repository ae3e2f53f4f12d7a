"""Workers and jobs that need no model: what an engine does with processes that die can be seen without one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.folder import RunFolder


@dataclass(frozen=True)
class Numbers:
    """A job: some numbers."""

    numbers: tuple[int, ...]

    def split(self) -> Sequence[Numbers]:
        return [replace(self, numbers=(number,)) for number in self.numbers]


def jobs(count: int, size: int = 2) -> list[Numbers]:
    return [Numbers(tuple(range(i, min(count, i + size)))) for i in range(0, count, size)]


@dataclass
class Squares:
    """Puts the square of each number into a run folder, with the process that made it.

    `deadly` numbers kill the process each time, `once` only the first time, `wrong` raise an error that stops the run.
    """

    location: str
    pause: float = 0.0
    deadly: tuple[int, ...] = ()
    once: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()

    def __call__(self, job: Numbers) -> list[int]:
        time.sleep(self.pause)
        folder = RunFolder.open(self.location)
        for number in job.numbers:
            if number in self.wrong:
                raise FloatLensError(f"number {number} cannot be squared")
            if number in self.deadly or (number in self.once and not folder.storage.exists(f"died-{number}")):
                folder.storage.write(f"died-{number}", b"")
                os.kill(os.getpid(), signal.SIGKILL)
        for number in job.numbers:
            folder.put((str(number),), {"square": number**2})
        return [os.getpid()] * len(job.numbers)


def squares(run: RunFolder) -> dict[int, Any]:
    return {int(result.key[0]): result.value["square"] for result in run.results()}
