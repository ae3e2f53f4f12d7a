"""Knowledge: every question without and with passages, for Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.evaluation.planning import CLOSED, OPEN, SHORT
from floatlens.evaluation.sources import DataSource
from floatlens.studies.parts.part import Bench, Part, each, first, sources_with_passages

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


def run(bench: Bench) -> None:
    tasks = []
    for source in sources_with_passages(bench.sources, bench.plan):
        questions = first(source, bench.plan.sizes.knowledge)
        tasks += [bench.task(questions, source.label, each, bench.plan.answering) for each in (CLOSED, OPEN)]
    bench.ask(tasks)


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    sources = sources_with_passages(sources, plan)
    asked = each(sources, sizes.knowledge)
    sized = {OPEN: sizes.traces, SHORT: sizes.short}
    shared = [c for c in plan.traced if c == OPEN or plan.answering == plan.asking]
    traced = {c: min(asked, each(sources, sized[c])) for c in shared if "traces" in plan.parts}
    return {"open": asked - traced.get(OPEN, 0), "closed": asked - traced.get(SHORT, 0)}


PART = Part("knowledge", run, units)
