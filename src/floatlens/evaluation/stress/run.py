"""Run a stress test: every model, every level, the same questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from floatlens.evaluation.answering import ProgressCallback, Task, answered
from floatlens.evaluation.journal import Journal
from floatlens.evaluation.source import Source
from floatlens.evaluation.stress.level import Level, Stress
from floatlens.evaluation.summary import frame
from floatlens.evaluation.worker import Worker
from floatlens.runs.engines.engine import Engine
from floatlens.runs.engines.local import LocalEngine
from floatlens.runs.folder import RunFolder

Levels = dict[str, list[Level]]  # by the data set's label


def run(
    stress: Stress,
    models: Sequence[str],
    levels: Levels,
    load: Callable[[str], Any],
    folder: RunFolder | None = None,
    watch: ProgressCallback | None = None,
    trace: bool = False,
    *,
    engine: Engine | None = None,
    retry_errors: bool = False,
) -> pd.DataFrame:
    """Rows of all models, data sets and levels; `condition` is the stress with its level, `x` the place on the axis.

    With `trace` every answer's trace is kept in the run folder, so that the attention behind a drop can be looked at.
    """
    journal = Journal(folder, retry_errors)

    def tasks() -> Iterator[Task]:
        for model in models:
            for data, several in levels.items():
                for level in several:
                    key = (model, data, f"{stress.name}={level.name}")
                    labels = {"stress": stress.name, "level": level.name, "x": None if level.x != level.x else level.x}
                    yield Task(key, level.samples, level.asking, len(level.samples), labels)

    rows, _ = answered(tasks(), Worker(load), journal, engine or LocalEngine(), watch, trace=trace)
    answers = frame(rows)
    if folder is not None:
        folder.write_table("answers", answers)
    return answers


def levels_of(stress: Stress, sources: Sequence[Source], *arguments: Any) -> Levels:
    """The levels of each data set, made before a model is loaded."""
    return {source.label: stress.levels(list(source.samples()), *arguments) for source in sources}
