"""Stress: the same questions at increasing difficulty, for each stress test on the first suitable data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate.condition import Condition, conditions
from floatlens.evaluation.sources import DataSource
from floatlens.evaluation.stress.stress import STRESSES, StressLevel, StressOptions, stress_jobs
from floatlens.studies.parts.part import Bench, Part, first, sources_with_passages

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes

KNOWN = ("world:common",)  # memorised by the bundled models, so it is not informative about the use of passages
SEEDS = (0,)  # seeds of the controls of interventions
PREFERRED = {"layout": "world:hops"}  # the world's data set made for a test


def run(bench: Bench) -> None:
    made, notes = levels(bench.plan, bench.sources)
    bench.notes += notes
    under = choose_conditions(bench.plan)
    bench.ask(
        [
            job
            for (name, data), several in made.items()
            for job in stress_jobs(STRESSES[name], [bench.model], {data: several}, conditions=under)
        ]
    )


def choose_conditions(plan: StudyPlan) -> list[Condition]:
    """Return no intervention, and those of the plan with one control each."""
    return conditions(plan.stress_interventions, None, SEEDS) if plan.stress_interventions else [Condition.plain()]


def levels(
    plan: StudyPlan, sources: Sequence[DataSource]
) -> tuple[dict[tuple[str, str], list[StressLevel]], list[str]]:
    """Return levels by stress and data set, and a note for each stress without a suitable data set.

    Distractors are drawn from all questions; only the first ones are asked.
    """
    made: dict[tuple[str, str], list[StressLevel]] = {}
    notes = []
    for name, stress in STRESSES.items():
        if plan.stresses is not None and name not in plan.stresses:
            continue
        reason = ""
        usable = sources_with_passages(sources, plan)
        for source in sorted(usable, key=lambda one: (one.name != PREFERRED.get(name), one.name in KNOWN)):
            try:
                found = stress.levels(first(source, None), plan.answering, StressOptions(seed=plan.seed or 0))
            except FloatLensError as error:
                reason = str(error)
                continue
            made[name, source.label] = [replace(one, samples=one.samples[: plan.sizes.stress]) for one in found]
            if not plan.wide:
                break
        if not any(name == key[0] for key in made):
            notes.append(f"stress {name} was left out: {reason or 'no data set has passages'}")
    return made, notes


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    made, _ = levels(replace(plan, sizes=sizes), sources)
    # One level of masks and of query reuses the answers of Table 1.
    shared = sum(len(several[0].samples) for (name, _), several in made.items() if name in ("masks", "query"))
    asked = sum(len(level.samples) for several in made.values() for level in several)
    return {"open": asked * len(choose_conditions(plan)) - shared}


PART = Part("stress", run, units)
