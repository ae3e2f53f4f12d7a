"""Traces: one a question, with passages; it serves all findings on attention, and its answer serves Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.study.parts.part import Bench, Part, each, first
from floatlens.study.sharing import Shared
from floatlens.tasks.evaluate import OPEN
from floatlens.tasks.source import Source
from floatlens.tasks.tracing import Tracing

if TYPE_CHECKING:
    from floatlens.study.plan import StudyPlan
    from floatlens.study.sizes import Sizes


def run(bench: Bench) -> None:
    for source in bench.sources:
        tracing = Tracing(bench.lens, bench.folder, (bench.model, source.label, OPEN))
        lens = Shared(tracing, bench.memory, fresh=True)
        bench.ask(lens, first(source, bench.plan.sizes.traces), source.label, OPEN, bench.plan.asking)


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[Source]) -> dict[str, int]:
    return {"trace": each(sources, sizes.traces)}


PART = Part("traces", ("drift", "absorption", "geometry", "tokens", "heads", "flow"), run, units)
