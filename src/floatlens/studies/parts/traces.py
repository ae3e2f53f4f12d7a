"""Traces: short questions without passages, and questions with passages; their answers serve Table 1.

Each finding on attention reads the set that it is made for, see `findings.settings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.evaluation.planning import OPEN, SHORT
from floatlens.evaluation.sources import DataSource
from floatlens.studies.parts.part import Bench, Part, answered, each, first

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


def run(bench: Bench) -> None:
    tasks = []
    for condition, count in counts(bench.plan, bench.plan.sizes, bench.model).items():
        short = condition == SHORT
        asking = bench.plan.asking if short else bench.plan.answering
        for source in bench.sources if short else answered(bench.sources, bench.plan):
            tasks.append(bench.task(first(source, count), source.label, condition, asking))
    bench.ask(tasks, trace=True)


def counts(plan: StudyPlan, sizes: Sizes, model: str | None = None) -> dict[str, int | None]:
    """Number of questions to trace per data set, by condition; a model that is only traced has short questions."""
    wanted = {SHORT: sizes.short, OPEN: sizes.traces}
    needed = plan.traced if model not in plan.traced_only else (SHORT,)
    return {condition: wanted[condition] for condition in needed}


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    names = {SHORT: "short", OPEN: "trace"}
    used = {SHORT: sources, OPEN: answered(sources, plan)}
    return {names[condition]: each(used[condition], count) for condition, count in counts(plan, sizes).items()}


PART = Part("traces", run, units)
