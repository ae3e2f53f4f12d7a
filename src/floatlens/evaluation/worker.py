"""A worker: keeps one model, and computes the batches that the loop sends to its process.

A batch that runs out of memory is halved, and a sample that fails is isolated, so that the others get their results.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from floatlens.errors import NotANumber
from floatlens.lens import Lens, limit_threads
from floatlens.options import Load

if TYPE_CHECKING:
    from floatlens.evaluation.loop import Batch

T = TypeVar("T")
R = TypeVar("R")
Checksums = Mapping[str, str]  # of traces, by their names in the run folder
# Errors of a single sample. Other FloatLensErrors are about settings and OSErrors about the disk: these stop the run.
SAMPLE_ERRORS = (RuntimeError, MemoryError, ValueError, IndexError, NotANumber)


@dataclass
class ModelWorker:
    """Computes batches: keeps one model at a time, saves traces, and returns the results.

    `load` is how models are loaded, or a function that returns the lens of a model's name; it is used once per model, in
    the process that needs the lens.

    >>> def run(batch):
    ...     if len(batch) > 2:
    ...         raise MemoryError
    ...     return [10 // n for n in batch]
    >>> ModelWorker().retry(run, [5, 1, 2])
    [2, 10, 5]
    """

    load: Load | Callable[[str], Lens] = Load()

    def __post_init__(self) -> None:
        self.held: tuple[str, Lens] | None = None
        self.largest: int | None = None  # number of samples that fit the memory, once it ran out
        self.notes: dict[str, Any] = {}  # results that a batch keeps for the next one with the same model

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load}  # a model stays in its process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.load = state["load"]
        self.__post_init__()

    def __call__(self, batch: Batch) -> tuple[list[tuple[Any, Checksums]], float]:
        """Compute a batch; returns its results, and the time in seconds without loading the model."""
        self.lens(batch.experiment.model)
        began = time.perf_counter()
        return list(batch.experiment.compute(self, batch, batch.folder)), time.perf_counter() - began

    def lens(self, model: str) -> Lens:
        """Return the lens of a model; the lens of another model is freed first."""
        if self.held is None or self.held[0] != model:
            self.held, self.notes = None, {}
            gc.collect()
            self.hold(model, self._load(model))
        assert self.held is not None
        return self.held[1]

    def hold(self, model: str, lens: Lens) -> None:
        """Use a lens that is already loaded."""
        self.held, self.notes, self.largest = (model, lens), {}, None

    def planning_lens(self, model: str, inside: bool) -> Lens:
        """Return a lens to plan with: the model's own if it is used in this process, otherwise one without weights."""
        if inside or not isinstance(self.load, Load):
            return self.lens(model)
        return Lens.find(model, self.load)

    def _load(self, model: str) -> Lens:
        if not isinstance(self.load, Load):
            return self.load(model)
        lens = limit_threads(Lens.find(model, self.load))
        _ = lens.model
        return lens

    def retry(self, run: Callable[[list[T]], Sequence[R]], items: Sequence[T]) -> list[R | BaseException]:
        """Call a function with a batch, and return the result of each item, or the error that it raises when run alone.

        When memory runs out, the batch is halved, and later ones have at most that size.
        """
        left: list[T] = list(items)
        done: list[R | BaseException] = []
        while left:
            batch = left[: self.largest or len(left)]
            try:
                done += run(batch)
            except SAMPLE_ERRORS as error:
                if is_out_of_memory(error) and len(batch) > 1:
                    self.largest = len(batch) // 2
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                    continue
                done += [error] if len(batch) == 1 else [self.retry(run, [item])[0] for item in batch]
            left = left[len(batch) :]
        return done


def error_reason(error: BaseException) -> str:
    """An error in one line, for a row."""
    text = "out of memory with a batch of one" if is_out_of_memory(error) else str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
