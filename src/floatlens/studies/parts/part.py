"""A part of a study: work on one model that produces what findings measure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.data.sample import Sample
from floatlens.evaluation.answers import AnswerRecord
from floatlens.evaluation.jobs import AnswerJob, ModelWorker
from floatlens.evaluation.planning import Asking, Key
from floatlens.evaluation.run import Journal, run_jobs
from floatlens.evaluation.sources import DataSource, open_sources
from floatlens.store.engine import Engine, ProgressCallback
from floatlens.store.folder import RunFolder
from floatlens.store.local import LocalEngine

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


@dataclass
class Bench:
    """What the parts of one model share: the questions, the run folder, the engine and all answers so far.

    `lens` is for planning; workers in other processes load their own.
    """

    plan: StudyPlan
    model: str
    lens: Lens
    sources: Sequence[DataSource]
    folder: RunFolder
    journal: Journal
    worker: ModelWorker
    engine: Engine = field(default_factory=LocalEngine)
    watch: ProgressCallback | None = None
    retry_errors: bool = False
    rows: dict[Key, AnswerRecord] = field(default_factory=dict)
    tables: list[pd.DataFrame] = field(default_factory=list)  # answers with additional columns
    notes: list[str] = field(default_factory=list)

    def task(self, samples: Sequence[Sample], data: str, condition: str, asking: Asking, **labels: Any) -> AnswerJob:
        """Describe questions to ask the model under one condition."""
        return AnswerJob(self.model, data, condition, samples, asking, len(samples), labels)

    def ask(self, tasks: Sequence[AnswerJob], *, trace: bool = False) -> float:
        """Answer all tasks; return the seconds of work, summed over workers.

        Questions that an earlier part or a killed run has answered are not asked again.
        """
        jobs = [replace(task, recording=self.plan.recording(task.condition)) if trace else task for task in tasks]
        made = run_jobs(jobs, self.worker, self.journal, engine=self.engine, watch=self.watch)
        self.rows.update({record.key: record for record in made.records})
        return sum(made.seconds.values()) * self.engine.workers


@dataclass(frozen=True)
class Part:
    """`run` does the work; `units` returns the number of traces and answers (open or closed book), for planning."""

    name: str
    run: Callable[[Bench], None]
    units: Callable[[Sizes, StudyPlan, Sequence[DataSource]], dict[str, int]]


@dataclass(frozen=True)
class FromOffset:
    """A data set without its first questions."""

    source: DataSource
    offset: int

    def samples(self) -> list[Sample]:
        return list(self.source.samples())[self.offset :]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


def sources_of(plan: StudyPlan) -> list[Any]:
    """Open the data sets of a study."""
    opened = open_sources(plan)
    return [FromOffset(source, plan.offset) for source in opened] if plan.offset else list(opened)


def first(source: DataSource, count: int | None) -> list[Sample]:
    """Return the first questions of a data set; with a seed, in a random order."""
    held, seed = list(source.samples()), source.plan.seed
    if seed is not None:
        held.sort(key=lambda sample: random.Random(f"{seed} {sample.id}").random())
    return held[:count]


def sources_with_passages(sources: Sequence[DataSource], plan: StudyPlan) -> list[DataSource]:
    """Return the data sets that are asked with passages; the others serve short traces only."""
    return [source for source in sources if source.name not in plan.short_data]


def each(sources: Sequence[DataSource], count: int | None) -> int:
    """Count the questions of all data sets if each contributes its first `count`."""
    return sum(len(first(source, count)) for source in sources)
