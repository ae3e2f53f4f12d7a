"""Traces: one per question, with passages; they serve all findings on attention, and their answers serve Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.evaluation.planning import OPEN
from floatlens.evaluation.sources import DataSource
from floatlens.studies.parts.part import Bench, Part, each, first

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes


def run(bench: Bench) -> None:
    asked = {source.label: first(source, bench.plan.sizes.traces) for source in bench.sources}
    tasks = [bench.task(questions, data, OPEN, bench.plan.asking) for data, questions in asked.items()]
    bench.ask(tasks, trace=True)


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    return {"trace": each(sources, sizes.traces)}


PART = Part("traces", run, units)
