"""A part of a study: work on one model that makes what some findings measure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.runs.engines.local import Local
from floatlens.runs.folder import RunFolder
from floatlens.study.sharing import Memory, Shared
from floatlens.tasks.answering import Answering, Task, Watch, answered
from floatlens.tasks.evaluate import Asking, Row
from floatlens.tasks.journal import Journal, Key
from floatlens.tasks.sample import Sample
from floatlens.tasks.source import Source

if TYPE_CHECKING:
    from floatlens.study.plan import StudyPlan
    from floatlens.study.sizes import Sizes


@dataclass
class Bench:
    """What the parts of one model work with: its lens, the questions, its run folder, and all answers so far."""

    plan: StudyPlan
    model: str
    lens: Any
    sources: Sequence[Source]
    folder: RunFolder
    journal: Journal
    watch: Watch | None = None
    memory: Memory = field(default_factory=dict)
    rows: dict[tuple[Key, str], Row] = field(default_factory=dict)
    tables: list[pd.DataFrame] = field(default_factory=list)  # answers with columns of their own
    notes: list[str] = field(default_factory=list)

    def ask(
        self,
        samples: Iterable[Sample],
        data: str,
        condition: str,
        asking: Asking,
        *,
        trace: bool = False,
        **labels: Any,
    ) -> list[Row]:
        """Rows of all samples; those that an earlier part or an earlier, killed run has answered are not asked again."""
        held = list(samples)
        task = Task((self.model, data, condition), held, asking, len(held), labels)
        worker = Answering(lambda _: Shared(self.lens, self.memory), str(self.folder.path), trace=trace)
        rows, _ = answered([task], worker, self.journal, Local(), self.watch)
        self.rows.update({(task.key, row.id): row for row in rows})
        return rows


@dataclass(frozen=True)
class Part:
    """`run` does the work; `units` says how many traces and answers (open or closed book) it takes, for planning."""

    name: str
    findings: tuple[str, ...]
    run: Callable[[Bench], None]
    units: Callable[[Sizes, StudyPlan, Sequence[Source]], dict[str, int]]


def first(source: Source, count: int | None) -> list[Sample]:
    """The first questions of a data set; of a fair draw, in an order that favours none."""
    held, seed = list(source.samples()), source.plan.seed
    if seed is not None:
        held.sort(key=lambda sample: random.Random(f"{seed} {sample.id}").random())
    return held[:count]


def each(sources: Sequence[Source], count: int | None) -> int:
    """Questions of all data sets together when each gives its first `count`."""
    return sum(len(first(source, count)) for source in sources)
