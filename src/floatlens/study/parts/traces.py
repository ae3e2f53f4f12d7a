"""Traces: one a question, with passages; it serves all findings on attention, and its answer serves Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.study.parts.part import Bench, Part, each, first
from floatlens.tasks.evaluate import OPEN
from floatlens.tasks.source import Source

if TYPE_CHECKING:
    from floatlens.study.plan import StudyPlan
    from floatlens.study.sizes import Sizes


def run(bench: Bench) -> None:
    for source in bench.sources:
        questions = first(source, bench.plan.sizes.traces)
        bench.ask(questions, source.label, OPEN, bench.plan.asking, trace=True)


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[Source]) -> dict[str, int]:
    return {"trace": each(sources, sizes.traces)}


PART = Part("traces", ("drift", "absorption", "geometry", "tokens", "heads", "flow"), run, units)
