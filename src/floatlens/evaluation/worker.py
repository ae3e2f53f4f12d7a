"""The worker of every engine: it keeps one model, and does with it what a job says."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from floatlens.runs.oom_retry import BatchRetry


class ModelJob(Protocol):
    """Something to do with a model, in whatever process."""

    def split(self) -> Sequence[ModelJob]: ...

    def done_by(self, worker: Worker) -> Any: ...


@dataclass
class Worker:
    """`load` makes a lens of a model's name; it is called in the process that needs the lens, once for each model."""

    load: Callable[[str], Any]

    def __post_init__(self) -> None:
        self.held: tuple[str, Any, BatchRetry[Any, Any]] | None = None
        self.notes: dict[str, Any] = {}  # what a job leaves for the next with the same model

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load, "held": None, "notes": {}}  # a model stays in its process

    def __call__(self, job: ModelJob) -> Any:
        return job.done_by(self)

    def lens(self, model: str) -> Any:
        """The lens of a model; the one before is let go first."""
        return self.holding(model)[0]

    def holding(self, model: str) -> tuple[Any, BatchRetry[Any, Any]]:
        """The lens, and what knows how large a batch its memory bears."""
        if self.held is None or self.held[0] != model:
            self.held, self.notes = None, {}
            gc.collect()
            self.hold(model, self.load(model))
        assert self.held is not None
        return self.held[1:]

    def hold(self, model: str, lens: Any) -> None:
        """Take a lens that is there already."""
        self.held, self.notes = (model, lens, BatchRetry(lambda items: [])), {}

    def planning(self, model: str, inside: bool) -> Any:
        """A lens to plan with: the model's own if it is used in this process, else one without its weights."""
        light = getattr(self.load, "without_weights", None)
        return self.lens(model) if inside or light is None else light(model)
