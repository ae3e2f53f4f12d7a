"""Ask planned batches of questions, in this process or in others, and keep each answer as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.evaluation.evaluate import Asking, Origin, Row, copied, fill, windows
from floatlens.evaluation.journal import Journal, Key
from floatlens.evaluation.sharing import Sharing
from floatlens.evaluation.tracing import Tracing
from floatlens.evaluation.worker import Worker
from floatlens.runs.engines.engine import Engine, JobFailure
from floatlens.runs.folder import RunFolder
from floatlens.runs.progress import ProgressCallback


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
    """Questions that are decoded together. Those that are not `wanted` have their rows; they only keep the company.

    `place` is the run folder that the rows go to, if there is one. With `trace`, the trace of every answer is kept too.
    """

    key: Key
    rows: list[Row]
    prompts: list[Prompt]
    wanted: list[bool]
    asking: Asking
    place: str | None = None
    trace: bool = False

    def split(self) -> list[Batch]:
        parts = zip(self.rows, self.prompts, self.wanted, strict=True)
        return [replace(self, rows=[r], prompts=[p], wanted=[w]) for r, p, w in parts if w]

    def done_by(self, worker: Worker) -> tuple[list[Row], float]:
        """The wanted rows, and the seconds they took."""
        lens, careful = worker.holding(self.key[0])
        began = time.perf_counter()
        folder = RunFolder.open(self.place) if self.place is not None else None
        chosen = {prompt.sample_id for prompt, wanted in zip(self.prompts, self.wanted, strict=True) if wanted}
        tracing = Tracing(lens, folder, self.key, chosen) if self.trace and folder is not None else None
        careful.run = lambda prompts: (tracing or lens).generate(prompts, **self.asking.generation())
        rows = []
        for row, prompt, wanted, answer in zip(
            self.rows, self.prompts, self.wanted, careful(self.prompts), strict=True
        ):
            if wanted:
                fill(row, answer)
                if folder is not None:
                    trees = tracing.trees.get(prompt.sample_id) if tracing else None
                    folder.put((*self.key, row.id), asdict(row), trees)
                rows.append(row)
        return rows, time.perf_counter() - began


def answered(
    tasks: Iterable[Task],
    worker: Worker,
    journal: Journal,
    engine: Engine,
    watch: ProgressCallback | None = None,
    *,
    trace: bool = False,
    sharing: Sharing | None = None,
) -> tuple[list[Row], dict[Key, float]]:
    """Rows of all tasks in the order of their questions, and the seconds each task took, shared by all workers.

    What the journal has is not asked again. With `sharing`, a prompt that was asked before gets the answer of then.
    """
    asked: dict[Key, list[str]] = {}
    seconds: dict[Key, float] = {}
    finished: dict[Key, Callable[[], None]] = {}
    copies: list[tuple[Row, Origin]] = []
    place = journal.folder.location if journal.folder is not None else None
    if sharing is not None:
        sharing.begin()

    def batches() -> Iterator[Batch]:
        for task in tasks:
            key = task.key
            asked[key], seconds[key] = [], 0.0
            finished[key] = watch(", ".join(key), task.count) if watch else ignore
            lens = worker.planning(key[0], engine.in_process)
            model, data, condition = key
            names = {"model": model, "data": data, "condition": condition, **task.labels}
            origin = sharing.origins(key, task.asking, again=trace) if sharing is not None else None
            for window in windows(lens, task.samples, task.asking, origin, **names):
                have = journal.found.get(key, {})
                asked[key] += [row.id for row in window.rows]
                missing = [row.id not in have for row in window.rows]
                for place_, (row, new) in enumerate(zip(window.rows, missing, strict=True)):
                    if not new:
                        finished[key]()
                    elif row.error is not None:
                        journal.add(row)
                        finished[key]()
                    elif place_ in window.origins:
                        copies.append((row, window.origins[place_]))
                for places, prompts in window.batches:
                    wanted = [missing[at] for at in places]
                    if any(wanted):
                        rows = [window.rows[at] for at in places]
                        yield Batch(key, rows, prompts, wanted, task.asking, place, trace)

    for batch, made in engine.run(worker, batches()):
        if isinstance(made, JobFailure):
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
    for row, (key, id_) in copies:
        journal.add(copied(row, journal.found[key][id_]))
        finished[row.model, row.data, row.condition]()
    return [row for key, ids in asked.items() for row in journal.rows(key, ids)], seconds


def ignore() -> None:
    """Nobody watches."""
