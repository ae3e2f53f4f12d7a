"""Run batches robustly: halve a batch that runs out of memory, and isolate a failing sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from floatlens.errors import NotANumber

T = TypeVar("T")
R = TypeVar("R")
# Errors of a single sample. Other FloatLensErrors are about settings and OSErrors about the disk: these stop the run.
SAMPLE_ERRORS = (RuntimeError, MemoryError, ValueError, IndexError, NotANumber)


class BatchRetry:
    """Calls a function with batches. When memory runs out, the batch is halved, and later ones have at most that size.

    >>> def run(batch):
    ...     if len(batch) > 2:
    ...         raise MemoryError
    ...     return [10 // n for n in batch]
    >>> BatchRetry()(run, [5, 1, 2])
    [2, 10, 5]
    """

    def __init__(self) -> None:
        self.size: int | None = None  # the largest that fits

    def __call__(self, run: Callable[[list[T]], Sequence[R]], items: Sequence[T]) -> list[R | BaseException]:
        """The result of each item, or the error that it raises when run alone."""
        left: list[T] = list(items)
        done: list[R | BaseException] = []
        while left:
            batch = left[: self.size or len(left)]
            try:
                done += run(batch)
            except SAMPLE_ERRORS as error:
                if is_out_of_memory(error) and len(batch) > 1:
                    self.size = len(batch) // 2
                    free_gpu_memory()
                    continue
                done += [error] if len(batch) == 1 else [self(run, [item])[0] for item in batch]
            left = left[len(batch) :]
        return done


def error_reason(error: BaseException) -> str:
    """An error in one line, for a row or errors.jsonl.

    >>> error_reason(RuntimeError("sizes differ\\nmore"))
    'sizes differ'
    """
    text = "out of memory with a batch of one" if is_out_of_memory(error) else str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    True
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text


def free_gpu_memory() -> None:
    """Free cached GPU memory."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
