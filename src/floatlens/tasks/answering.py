"""Ask planned batches of questions, in this process or in others, and keep each answer as soon as it is there."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from floatlens.runs.careful import Careful
from floatlens.runs.engines.engine import Died, Engine
from floatlens.runs.folder import RunFolder
from floatlens.runs.progress import Watch
from floatlens.tasks.evaluate import Asking, Row, fill, windows
from floatlens.tasks.journal import Journal, Key
from floatlens.tasks.prompt import Prompt
from floatlens.tasks.sample import Sample
from floatlens.tasks.tracing import Tracing


@dataclass(frozen=True)
class Task:
    """Questions to ask one model under one condition."""

    key: Key
    samples: Iterable[Sample]
    asking: Asking
    count: int | None = None
    labels: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Questions that are decoded together. Those that are not `wanted` have their rows; they only keep the company."""

    key: Key
    rows: list[Row]
    prompts: list[Prompt]
    wanted: list[bool]
    asking: Asking

    def split(self) -> list[Batch]:
        parts = zip(self.rows, self.prompts, self.wanted, strict=True)
        return [replace(self, rows=[r], prompts=[p], wanted=[w]) for r, p, w in parts if w]


@dataclass
class Answering:
    """The worker: keeps one model, answers batches with it, and puts the rows into the run folder.

    `load` makes a lens of a model's name; `place` is the run folder, if there is one. With `trace`, the trace of every
    answer is kept too.
    """

    load: Callable[[str], Any]
    place: str | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        self.held: tuple[str, Any, Careful[Any, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load, "place": self.place, "trace": self.trace, "held": None}

    def lens(self, model: str) -> Any:
        """The lens of a model; the one before is let go first."""
        return self._holding(model)[0]

    def _holding(self, model: str) -> tuple[Any, Careful[Any, Any]]:
        if self.held is None or self.held[0] != model:
            self.held = None
            gc.collect()
            self.held = (model, self.load(model), Careful(lambda prompts: []))
        return self.held[1:]

    def __call__(self, batch: Batch) -> tuple[list[Row], float]:
        """The wanted rows, and the seconds they took."""
        began = time.perf_counter()
        lens, careful = self._holding(batch.key[0])
        folder = RunFolder.open(self.place) if self.place is not None else None
        chosen = {prompt.sample_id for prompt, wanted in zip(batch.prompts, batch.wanted, strict=True) if wanted}
        tracing = Tracing(lens, folder, batch.key, chosen) if self.trace and folder is not None else None
        careful.run = lambda prompts: (tracing or lens).generate(prompts, **batch.asking.generation())
        rows = []
        for row, prompt, wanted, answer in zip(
            batch.rows, batch.prompts, batch.wanted, careful(batch.prompts), strict=True
        ):
            if wanted:
                fill(row, answer)
                if folder is not None:
                    trees = tracing.trees.get(prompt.sample_id) if tracing else None
                    folder.put((*batch.key, row.id), asdict(row), trees)
                rows.append(row)
        return rows, time.perf_counter() - began


def answered(
    tasks: Iterable[Task], worker: Answering, journal: Journal, engine: Engine, watch: Watch | None = None
) -> tuple[list[Row], dict[Key, float]]:
    """Rows of all tasks in the order of their questions, and the seconds each task took, shared by all workers.

    What the journal has is not asked again.
    """
    asked: dict[Key, list[str]] = {}
    seconds: dict[Key, float] = {}
    finished: dict[Key, Callable[[], None]] = {}

    def batches() -> Iterator[Batch]:
        light = getattr(worker.load, "light", None)
        for task in tasks:
            key = task.key
            asked[key], seconds[key] = [], 0.0
            finished[key] = watch(", ".join(key), task.count) if watch else ignore
            lens = worker.lens(key[0]) if engine.inside or light is None else light(key[0])
            model, data, condition = key
            names = {"model": model, "data": data, "condition": condition, **task.labels}
            for window in windows(lens, task.samples, task.asking, **names):
                have = journal.found.get(key, {})
                asked[key] += [row.id for row in window.rows]
                missing = [row.id not in have for row in window.rows]
                for row, new in zip(window.rows, missing, strict=True):
                    if not new:
                        finished[key]()
                    elif row.error is not None:
                        journal.add(row)
                        finished[key]()
                for places, prompts in window.batches:
                    wanted = [missing[place] for place in places]
                    if any(wanted):
                        yield Batch(key, [window.rows[place] for place in places], prompts, wanted, task.asking)

    for batch, made in engine.run(worker, batches()):
        if isinstance(made, Died):
            for row in batch.rows:
                row.error = made.reason
                journal.add(row)
                finished[batch.key]()
            continue
        rows, took = made
        seconds[batch.key] += took / engine.workers
        for row in rows:
            journal.keep(row)
            finished[batch.key]()
    return [row for key, ids in asked.items() for row in journal.rows(key, ids)], seconds


def ignore() -> None:
    """Nobody watches."""
