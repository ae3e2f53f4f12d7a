"""Several models on several data sets, with and without passages: the runs behind the paper's Table 1.

All models are asked in the same way, and each answer is kept as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from floatlens.data.readers import registry
from floatlens.data.retrieval import index_of
from floatlens.evaluation.answering import ProgressCallback, Task, answered
from floatlens.evaluation.journal import Journal, Key
from floatlens.evaluation.plan import Plan
from floatlens.evaluation.source import Source
from floatlens.evaluation.summary import frame
from floatlens.evaluation.worker import Worker
from floatlens.runs.engines.engine import Engine
from floatlens.runs.engines.local import LocalEngine
from floatlens.runs.folder import RunFolder


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
    watch: ProgressCallback | None = None,
    *,
    engine: Engine | None = None,
    retry_errors: bool = False,
) -> Outcome:
    """Ask every model every question of the sources under every condition.

    `load` makes a lens of a model's name. `watch` is told what begins and how many questions it has, if that is known,
    and returns what is to be called for each that is done.
    """
    journal = Journal(folder, retry_errors)

    def tasks() -> Iterator[Task]:
        for model in plan.models:
            for source in sources:
                for condition in plan.conditions:
                    samples = source.samples()
                    yield Task((model, source.label, condition), samples, plan.asking, source.count)

    rows, seconds = answered(tasks(), Worker(load), journal, engine or LocalEngine(), watch)
    problems = {source.label: source.problems for source in sources if source.problems}
    outcome = Outcome(frame(rows), problems, seconds)
    if folder is not None:
        folder.write_table("answers", outcome.answers)
    return outcome
