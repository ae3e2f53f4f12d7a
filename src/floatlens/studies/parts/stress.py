"""Stress: the same questions ever harder, by each stress test, on the first data set that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.sources import DataSource
from floatlens.evaluation.stress.stress import STRESSES, StressLevel, StressOptions
from floatlens.studies.parts.part import Bench, Part, first

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes

KNOWN = ("world:common",)  # answers that the bundled models know by heart say little about the use of passages
PREFERRED = {"layout": "world:hops"}  # of the world's data sets the one that is made for a test


def run(bench: Bench) -> None:
    made, notes = levels(bench.plan, bench.sources)
    bench.notes += notes
    tasks = []
    for (name, data), several in made.items():
        for level in several:
            labels: dict[str, Any] = {"stress": name, "level": level.name, "x": None if level.x != level.x else level.x}
            tasks.append(bench.task(level.samples, data, f"{name}={level.name}", level.asking, **labels))
    bench.ask(tasks)


def levels(
    plan: StudyPlan, sources: Sequence[DataSource]
) -> tuple[dict[tuple[str, str], list[StressLevel]], list[str]]:
    """Levels by stress and data set, and a sentence for each stress that no data set suits.

    Distractors are drawn from all questions at hand; only the first are asked.
    """
    made: dict[tuple[str, str], list[StressLevel]] = {}
    notes = []
    for name, stress in STRESSES.items():
        reason = ""
        for source in sorted(sources, key=lambda one: (one.name != PREFERRED.get(name), one.name in KNOWN)):
            try:
                found = stress.levels(first(source, None), plan.asking, StressOptions(seed=plan.seed or 0))
            except FloatLensError as error:
                reason = str(error)
                continue
            made[name, source.label] = [replace(one, samples=one.samples[: plan.sizes.stress]) for one in found]
            if not plan.wide:
                break
        if not any(name == key[0] for key in made):
            notes.append(f"{name} was left out: {reason}")
    return made, notes


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    made, _ = levels(replace(plan, sizes=sizes), sources)
    # Masks and the question's place have one level that Table 1 answers; it is not counted.
    shared = sum(len(several[0].samples) for (name, _), several in made.items() if name in ("masks", "query"))
    return {"open": sum(len(level.samples) for several in made.values() for level in several) - shared}


PART = Part("stress", ("stress",), run, units)
