"""A part of a study: work on one model that produces what findings measure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.data.sample import Sample
from floatlens.evaluation import answering
from floatlens.evaluation.answering import Task, Watch
from floatlens.evaluation.comparison import open_sources
from floatlens.evaluation.evaluate import Asking, Row
from floatlens.evaluation.journal import Journal, Key
from floatlens.evaluation.sharing import Sharing
from floatlens.evaluation.source import Source
from floatlens.evaluation.worker import Worker
from floatlens.runs.engines.engine import Engine
from floatlens.runs.engines.local import Local
from floatlens.runs.folder import RunFolder

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


@dataclass
class Bench:
    """What the parts of one model share: the questions, the run folder, the engine and all answers so far.

    `lens` is for planning; workers in other processes load their own.
    """

    plan: StudyPlan
    model: str
    lens: Any
    sources: Sequence[Source]
    folder: RunFolder
    journal: Journal
    worker: Worker
    engine: Engine = field(default_factory=Local)
    watch: Watch | None = None
    retry_errors: bool = False
    rows: dict[tuple[Key, str], Row] = field(default_factory=dict)
    tables: list[pd.DataFrame] = field(default_factory=list)  # answers with columns of their own
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sharing = Sharing(self.journal)

    def task(self, samples: Sequence[Sample], data: str, condition: str, asking: Asking, **labels: Any) -> Task:
        """Describe questions to ask the model under one condition."""
        return Task((self.model, data, condition), samples, asking, len(samples), labels)

    def ask(self, tasks: Sequence[Task], *, trace: bool = False) -> float:
        """Answer all tasks; return the seconds of work, summed over workers.

        Questions that an earlier part or a killed run has answered are not asked again.
        """
        rows, seconds = answering.answered(
            tasks, self.worker, self.journal, self.engine, self.watch, trace=trace, sharing=self.sharing
        )
        self.rows.update({((row.model, row.data, row.condition), row.id): row for row in rows})
        return sum(seconds.values()) * self.engine.workers


@dataclass(frozen=True)
class Part:
    """`run` does the work; `units` says how many traces and answers (open or closed book) it takes, for planning."""

    name: str
    run: Callable[[Bench], None]
    units: Callable[[Sizes, StudyPlan, Sequence[Source]], dict[str, int]]


@dataclass(frozen=True)
class FromOffset:
    """A data set without its first questions."""

    source: Source
    offset: int

    def samples(self) -> list[Sample]:
        return list(self.source.samples())[self.offset :]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


def sources_of(plan: StudyPlan) -> list[Any]:
    """Open the data sets of a study."""
    opened = open_sources(plan.comparison())
    return [FromOffset(source, plan.offset) for source in opened] if plan.offset else list(opened)


def first(source: Source, count: int | None) -> list[Sample]:
    """Return the first questions of a data set; with a seed, in a random order."""
    held, seed = list(source.samples()), source.plan.seed
    if seed is not None:
        held.sort(key=lambda sample: random.Random(f"{seed} {sample.id}").random())
    return held[:count]


def answered(sources: Sequence[Source], plan: StudyPlan) -> list[Source]:
    """Return the data sets that are asked with passages; the others serve short traces only."""
    return [source for source in sources if source.name not in plan.short_data]


def each(sources: Sequence[Source], count: int | None) -> int:
    """Count the questions of all data sets if each contributes its first `count`."""
    return sum(len(first(source, count)) for source in sources)
