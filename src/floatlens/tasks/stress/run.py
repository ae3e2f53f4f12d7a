"""Run a stress test: every model, every level, the same questions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from floatlens.runs.folder import RunFolder
from floatlens.tasks.comparison import Watch, answered, ignore
from floatlens.tasks.evaluate import Row
from floatlens.tasks.journal import Journal
from floatlens.tasks.source import Source
from floatlens.tasks.stress.level import Level, Stress
from floatlens.tasks.summary import frame
from floatlens.tasks.tracing import Tracing

Levels = dict[str, list[Level]]  # by the data set's label


def run(
    stress: Stress,
    models: Sequence[str],
    levels: Levels,
    load: Callable[[str], Any],
    folder: RunFolder | None = None,
    watch: Watch | None = None,
    trace: bool = False,
) -> pd.DataFrame:
    """Rows of all models, data sets and levels; `condition` is the stress with its level, `x` the place on the axis.

    With `trace` every answer's trace is kept in the run folder, so that the attention behind a drop can be looked at.
    """
    journal = Journal(folder)
    rows: list[Row] = []
    for model in models:
        lens = load(model)
        for data, several in levels.items():
            for level in several:
                key = (model, data, f"{stress.name}={level.name}")
                done = watch(", ".join(key), len(level.samples)) if watch else ignore
                labels = {"stress": stress.name, "level": level.name, "x": None if level.x != level.x else level.x}
                asked = Tracing(lens, folder, key) if trace and folder is not None else lens
                rows += answered(asked, level.samples, level.asking, key, journal, done, **labels)
        del lens
        gc.collect()
    answers = frame(rows)
    if folder is not None:
        folder.write_table("answers", answers)
        journal.close()
    return answers


def levels_of(stress: Stress, sources: Sequence[Source], *arguments: Any) -> Levels:
    """The levels of each data set, made before a model is loaded."""
    return {source.label: stress.levels(list(source.samples()), *arguments) for source in sources}
