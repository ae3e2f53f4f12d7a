"""Several models on several data sets, with and without passages: the runs behind the paper's Table 1.

All models are asked in the same way, and each answer is kept as soon as it is there.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from floatlens.runs.folder import RunFolder
from floatlens.tasks.evaluate import Asking, Row, evaluate
from floatlens.tasks.journal import Journal, Key
from floatlens.tasks.plan import Plan
from floatlens.tasks.readers import registry
from floatlens.tasks.retrieval import index_of
from floatlens.tasks.sample import Sample
from floatlens.tasks.source import Source
from floatlens.tasks.summary import frame

Watch = Callable[[str, int | None], Callable[[], None]]


@dataclass
class Outcome:
    """All rows, what could not be read, and how long each part took (seconds by model, data, condition)."""

    answers: pd.DataFrame
    problems: dict[str, str]
    seconds: dict[Key, float]


def open_sources(plan: Plan) -> list[Source]:
    """The plan's data sets, each found to have questions: what cannot be read is refused before a model is loaded."""
    index = index_of(plan.corpus) if plan.corpus else None
    sources = [Source(each, plan, index) for name in plan.data for each in registry.expand(name)]
    for source in sources:
        next(iter(source.samples()))
    return sources


def run(
    plan: Plan,
    sources: Sequence[Source],
    load: Callable[[str], Any],
    folder: RunFolder | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Ask every model every question of the sources under every condition.

    `load` makes a lens of a model's name. `watch` is told what begins and how many questions it has, if that is known,
    and returns what is to be called for each that is done.
    """
    journal = Journal(folder)
    rows: list[Row] = []
    seconds: dict[Key, float] = {}
    for model in plan.models:
        lens = load(model)
        for source in sources:
            for condition in plan.conditions:
                key = (model, source.label, condition)
                samples = source.samples()
                done = watch(", ".join(key), source.count) if watch else ignore
                began = time.perf_counter()
                rows += answered(lens, samples, plan.asking, key, journal, done)
                seconds[key] = time.perf_counter() - began
        del lens
        gc.collect()
    problems = {source.label: source.problems for source in sources if source.problems}
    outcome = Outcome(frame(rows), problems, seconds)
    if folder is not None:
        folder.write_table("answers", outcome.answers)
        journal.close()
    return outcome


def answered(
    lens: Any,
    samples: Iterable[Sample],
    asking: Asking,
    key: Key,
    journal: Journal,
    done: Callable[[], None],
    **labels: Any,
) -> list[Row]:
    """Rows of all samples in their order: those that the journal has, and new ones for the rest."""
    model, data, condition = key
    asked: list[str] = []

    def keep(row: Row) -> None:
        journal.add(row)
        done()

    new = journal.unanswered(samples, key, asked, done)
    for _ in evaluate(lens, new, asking, keep=keep, model=model, data=data, condition=condition, **labels):
        pass
    return journal.rows(key, asked)


def ignore() -> None:
    """Nobody watches."""
