"""Run a batch so that one bad sample costs one sample: halve when memory runs out, and single out what fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from floatlens.errors import NotANumber

T = TypeVar("T")
R = TypeVar("R")
# Failures of one sample. Any other FloatLensError is about the settings, and an OSError about the disk: they stop the run.
FAILURES = (RuntimeError, MemoryError, ValueError, IndexError, NotANumber)


class Careful(Generic[T, R]):
    """Calls `run` with batches. When memory runs out the batch is halved, and later ones are no larger than that.

    >>> def run(batch):
    ...     if len(batch) > 2:
    ...         raise MemoryError
    ...     return [10 // n for n in batch]
    >>> Careful(run)([5, 1, 2])
    [2, 10, 5]
    """

    def __init__(self, run: Callable[[list[T]], Sequence[R]]) -> None:
        self.run = run
        self.size: int | None = None

    def __call__(self, items: Sequence[T]) -> list[R | BaseException]:
        """What `run` gives for each item, or the error that the item alone ends with."""
        left, done = list(items), list[Any]()
        while left:
            batch = left[: self.size or len(left)]
            try:
                done += self.run(batch)
            except FAILURES as error:
                if is_out_of_memory(error) and len(batch) > 1:
                    self.size = len(batch) // 2
                    forget()
                    continue
                done += [error] if len(batch) == 1 else self._one_by_one(batch)
            left = left[len(batch) :]
        return done

    def _one_by_one(self, batch: Sequence[T]) -> list[Any]:
        done: list[Any] = []
        for item in batch:
            try:
                done += self.run([item])
            except FAILURES as error:
                done.append(error)
        return done


def reason(error: BaseException) -> str:
    """An error in one line, for a row or errors.jsonl.

    >>> reason(RuntimeError("sizes differ\\nmore"))
    'sizes differ'
    """
    what = "out of memory with a batch of one" if is_out_of_memory(error) else str(error).strip()
    return what.splitlines()[0] if what else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    True
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error).lower()
    return "out of memory" in said or "can't allocate memory" in said or "not enough memory" in said


def forget() -> None:
    """Give memory back to the device."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
