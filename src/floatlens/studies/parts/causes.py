"""Causes: the same questions under interventions, each with its matched random control, on the stress tests' data.

The answers without interventions are generated again, because effects are measured along each of their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floatlens.evaluation.ablate.condition import conditions, standard
from floatlens.evaluation.ablate.job import ablate
from floatlens.evaluation.sources import DataSource
from floatlens.interventions.intervention import NO_ATTENTION
from floatlens.models.describe import is_state_space
from floatlens.store.folder import RunFolder
from floatlens.store.runs import CAUSES
from floatlens.studies.parts.part import Bench, Part, first, sources_with_passages
from floatlens.studies.parts.stress import KNOWN

if TYPE_CHECKING:
    from floatlens.studies.plan import StudyPlan
    from floatlens.studies.sizes import Sizes

# The interventions that the claims need, at one or two doses; --full runs the standard ones at all doses.
USUAL = (
    "mask-anchors(rule=top({n})) @ 1,4",
    "pin-anchors(rule=sigma(3))",
    "pin-anchors(rule=sigma(3), across=layers)",
    "move-anchors(by=8, rule=sigma(3))",
    "ablate-heads(heads=top({n})) @ 1,4",
    "mask-anchors(rule=top(4), layers=shallow)",
    "mask-anchors(rule=top(4), layers=deep)",
    "ablate-heads(heads=top(2), layers=shallow)",
    "ablate-heads(heads=top(2), layers=deep)",
)
SEEDS = (0,)  # seeds of the controls; --full uses two
PASSES = 3  # cost relative to an answer: the answer itself, its steps replayed, and the gold answer


def run(bench: Bench) -> None:
    if is_state_space(bench.lens.config):
        bench.notes.append(
            f"causes of {bench.model} were left out: interventions change softmax attention, and {NO_ATTENTION}"
        )
        return
    plan, source = bench.plan, choose_source(sources_with_passages(bench.sources, bench.plan))
    specs, seeds = choose_interventions(plan, bench.lens.shape["layers"] or 1)
    manifest = plan.manifest({"model": bench.model, "interventions": specs, "controls": seeds}, [bench.model])
    questions = {source.label: first(source, plan.sizes.causes)}
    with RunFolder.create(bench.folder.inside(CAUSES), manifest, resume=True) as folder:
        bench.tables.append(
            ablate(
                [bench.model],
                questions,
                specs,
                seeds=seeds,
                asking=plan.answering,
                folder=folder,
                watch=bench.watch,
                engine=bench.engine,
                worker=bench.worker,
                retry_errors=bench.retry_errors,
            )
        )
        folder.finish()


def choose_interventions(plan: StudyPlan, layers: int) -> tuple[list[str], list[int]]:
    """Return the interventions and the seeds of their controls."""
    if plan.interventions is not None:
        return list(plan.interventions), list(SEEDS)
    return (standard(layers), [0, 1]) if plan.wide else (list(USUAL), list(SEEDS))


def choose_source(sources: Sequence[DataSource]) -> DataSource:
    """Return the first data set whose answers the bundled models have not memorised."""
    return min(sources, key=lambda source: source.name in KNOWN)


def units(sizes: Sizes, plan: StudyPlan, sources: Sequence[DataSource]) -> dict[str, int]:
    specs, seeds = choose_interventions(plan, 6)
    questions = first(choose_source(sources_with_passages(sources, plan)), sizes.causes)
    return {"open": PASSES * len(conditions(specs, None, seeds)) * len(questions)}


PART = Part("causes", run, units)
