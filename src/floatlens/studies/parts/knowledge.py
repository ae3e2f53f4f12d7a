"""Knowledge: every question without and with passages, for Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.evaluation.planning import CLOSED, OPEN
from floatlens.evaluation.sources import DataSource
from floatlens.studies.parts.part import Bench, Part, each, first

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


def run(bench: Bench) -> None:
    tasks = []
    for source in bench.sources:
        questions = first(source, bench.plan.sizes.knowledge)
        tasks += [bench.task(questions, source.label, each, bench.plan.asking) for each in (CLOSED, OPEN)]
    bench.ask(tasks)


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    asked = each(sources, sizes.knowledge)
    traced = min(asked, each(sources, sizes.traces)) if "traces" in plan.parts else 0
    return {"open": asked - traced, "closed": asked}


PART = Part("knowledge", run, units)
