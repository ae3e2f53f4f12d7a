"""Traces: short questions without passages, and questions with passages; their answers serve Table 1.

Each finding on attention uses one of the two sets, see `findings.finding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.evaluation.planning import OPEN, SHORT
from floatlens.evaluation.sources import DataSource
from floatlens.studies.parts.part import Bench, Part, first, sources_with_passages

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


def run(bench: Bench) -> None:
    tasks = []
    for source, condition, count in traced(bench.plan, bench.plan.sizes, bench.sources, bench.model):
        asking = bench.plan.asking if condition == SHORT else bench.plan.answering
        tasks.append(bench.task(first(source, count), source.label, condition, asking))
    bench.ask(tasks, trace=True)


def traced(
    plan: StudyPlan, sizes: Sizes, sources: Sequence[DataSource], model: str | None = None
) -> list[tuple[DataSource, str, int | None]]:
    """The data sets, conditions and numbers of questions to trace; `traced_only` models have only short questions.

    Beside data sets for short questions only, the others give no more of these than of questions with passages.
    """
    made: list[tuple[DataSource, str, int | None]] = []
    few = sizes.short if sizes.traces is None or sizes.short is None else min(sizes.short, sizes.traces)
    if SHORT in plan.traced or model in plan.traced_only:
        for source in sources:
            fewer = plan.short_data and source.name not in plan.short_data
            made.append((source, SHORT, few if fewer else sizes.short))
    if OPEN in plan.traced and model not in plan.traced_only:
        made += [(source, OPEN, sizes.traces) for source in sources_with_passages(sources, plan)]
    return made


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    found: dict[str, int] = {}
    for source, condition, count in traced(plan, sizes, sources):
        kind = "short" if condition == SHORT else "trace"
        found[kind] = found.get(kind, 0) + len(first(source, count))
    return found


PART = Part("traces", run, units)
