"""The work of a study on one model: its parts in the model's own run folder, independent of failures in other parts.

A part is a function of `ModelStudy`; `plan.PARTS` has their order, and findings name the part that they need.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate import ablate
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.conditions import Condition, conditions, standard
from floatlens.evaluation.loop import Experiment, Journal, ModelWorker, run_experiments
from floatlens.evaluation.sources import CLOSED, OPEN, SHORT, DataSource, Key, with_gold_at
from floatlens.evaluation.stress import STRESSES, StressLevel, StressOptions, stress_experiments
from floatlens.interventions.intervention import NO_ATTENTION
from floatlens.models.describe import is_state_space
from floatlens.store.engine import Engine, LocalEngine, ProgressCallback, as_one
from floatlens.store.folder import ERRORS, RunFolder
from floatlens.store.runs import CAUSES, TEXTS
from floatlens.studies.plan import StudyPlan
from floatlens.studies.texts import run_texts

if TYPE_CHECKING:
    from floatlens.lens import Lens

STATUS = "parts.json"
KNOWN = ("world:common",)  # memorised by the bundled models, so it is not informative about the use of passages
PREFERRED = {"layout": "world:hops"}  # the world's data set made for a stress test
# The interventions that the claims need, at one or two doses; --full runs the standard ones at all doses.
USUAL = (
    "mask-anchors(rule=top({n})) @ 1,4",
    "pin-anchors(rule=sigma(3))",
    "pin-anchors(rule=sigma(3), across=layers)",
    "move-anchors(by=8, rule=sigma(3))",
    "add-sink(score=0)",
    "ablate-heads(heads=top({n})) @ 1,4",
    "mask-anchors(rule=top(4), layers=shallow)",
    "mask-anchors(rule=top(4), layers=deep)",
    "ablate-heads(heads=top(2), layers=shallow)",
    "ablate-heads(heads=top(2), layers=deep)",
)
Planned = tuple[list[Experiment], list[str]]
SEEDS = (0,)  # seeds of the controls; --full uses two for the finding causes


@dataclass
class ModelOutcome:
    """The outcome for one model: seconds per part, reasons of failed parts, and remarks."""

    model: str
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class ModelStudy:
    """What the parts of one model share: the questions, the run folder, the engine and all answers so far.

    `lens` is for planning; workers in other processes load their own.
    """

    plan: StudyPlan
    model: str
    lens: Lens
    sources: Sequence[DataSource]
    folder: RunFolder
    journal: Journal
    worker: ModelWorker
    engine: Engine = field(default_factory=LocalEngine)
    watch: ProgressCallback | None = None
    rows: dict[Key, AnswerRecord] = field(default_factory=dict)
    tables: list[pd.DataFrame] = field(default_factory=list)  # answers with additional columns
    notes: list[str] = field(default_factory=list)

    def ask(self, part: str) -> None:
        """Answer the questions of a part; those that an earlier part or a killed run has answered are not asked again."""
        jobs, notes = EXPERIMENTS[part](self.plan, self.model, self.sources)
        self.notes += notes
        watch = as_one(self.watch, f"{self.model}, {part}", sum(job.count or 0 for job in jobs))
        records, _ = run_experiments(jobs, self.worker, self.journal, engine=self.engine, watch=watch)
        moved = part == "traces" and self.plan.reading.gold_at  # asked three times, say; Table 1 counts a question once
        self.rows.update({each.key: each for each in records if not (moved and each.condition == OPEN)})


def study_model(
    model: str,
    plan: StudyPlan,
    path: str | Path,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> ModelOutcome:
    """Run all parts for a model; a killed run resumes, and a finished one is not repeated."""
    does = engine or LocalEngine()
    asked = {"model": model, **plan.asked()}
    with RunFolder.create(path, plan.manifest(asked, [model]), resume=True) as folder, does.keep_workers():
        storage = folder.storage
        before = ModelOutcome(**json.loads(storage.read(STATUS))) if storage.exists(STATUS) else None
        if before is not None and not before.failed and not has_failures(folder):
            return before
        worker = ModelWorker(plan.load)
        lens = worker.planning_lens(model, does.in_process)
        journal = Journal(folder, share_prompts=True)
        shared = ModelStudy(plan, model, lens, plan.sources(), folder, journal, worker, does, watch)
        outcome = ModelOutcome(model, notes=shared.notes)
        for name in plan.parts:
            began = time.perf_counter()
            try:
                OTHERS[name](shared) if name in OTHERS else shared.ask(name)
            except Exception as error:  # any failure is reported in its section; the other parts continue
                logging.getLogger(__name__).debug("part %s of %s failed", name, model, exc_info=True)
                text = " ".join(str(error).split())
                outcome.failed[name] = text if isinstance(error, FloatLensError) else f"{type(error).__name__}: {text}"
            outcome.seconds[name] = round(time.perf_counter() - began, 2)
        answers = answers_table(list(shared.rows.values()))
        folder.write_table("answers", pd.concat([answers, *shared.tables], ignore_index=True))
        folder.write_text(STATUS, json.dumps(outcome.__dict__, indent=2, ensure_ascii=False) + "\n")
        folder.finish()
        return outcome


def has_failures(folder: RunFolder) -> bool:
    """Whether a question failed in a model's run, with or without interventions."""
    return any(folder.storage.exists(name) for name in (ERRORS, f"{CAUSES}/{ERRORS}", f"{TEXTS}/{ERRORS}"))


# The parts that ask questions: their experiments, and notes on what was left out


def trace_experiments(plan: StudyPlan, model: str, sources: Sequence[DataSource]) -> Planned:
    """Trace short questions without passages, and questions with passages; their answers serve Table 1."""
    jobs = []
    for condition, count in ((SHORT, plan.sizes.short), (OPEN, plan.sizes.traces)):
        for source in sources if condition in plan.traced else ():
            samples = first(source, count, plan)
            if condition == OPEN:
                samples = list(with_gold_at(samples, plan.reading.gold_at))
            job = _experiment(plan, model, source, condition, samples)
            jobs.append(replace(job, recording=plan.recording(condition)))
    return jobs, []


def knowledge_experiments(plan: StudyPlan, model: str, sources: Sequence[DataSource]) -> Planned:
    """Ask every question without and with passages, for Table 1."""
    asked = [(source, first(source, plan.sizes.knowledge, plan)) for source in sources]
    jobs = [_experiment(plan, model, source, how, samples) for source, samples in asked for how in (CLOSED, OPEN)]
    return jobs, []


def stress_tests(plan: StudyPlan, model: str, sources: Sequence[DataSource]) -> Planned:
    """Ask the same questions at increasing difficulty, for each stress test on the first suitable data set."""
    made, notes = stress_levels(plan, sources)
    specs = plan.scope.stress_interventions
    under = conditions(specs, None, SEEDS) if specs else [Condition.plain()]
    how: dict[str, Any] = {"sampling": plan.sampling, "reading": plan.reading, "batch_size": plan.run.batch_size}
    jobs = [
        job
        for (name, data), several in made.items()
        for job in stress_experiments(STRESSES[name], [model], {data: several}, under, **how)
    ]
    return jobs, notes


def _experiment(
    plan: StudyPlan, model: str, source: DataSource, condition: str, samples: Sequence[Sample]
) -> Experiment:
    size = plan.run.batch_size
    return Experiment(model, source.label, condition, samples, plan.sampling, plan.reading, size, len(samples))


def stress_levels(
    plan: StudyPlan, sources: Sequence[DataSource]
) -> tuple[dict[tuple[str, str], list[StressLevel]], list[str]]:
    """Return levels by stress and data set, and a note for each stress without a suitable data set.

    Distractors are drawn from all questions; only the first ones are asked.
    """
    made: dict[tuple[str, str], list[StressLevel]] = {}
    notes = []
    for name, stress in STRESSES.items():
        if plan.scope.stresses is not None and name not in plan.scope.stresses:
            continue
        reason = ""
        for source in sorted(sources, key=lambda one: (one.name != PREFERRED.get(name), one.name in KNOWN)):
            try:
                options = StressOptions(seed=plan.reading.seed or 0)
                found = stress.levels(first(source, None, plan), options)
            except FloatLensError as error:
                reason = str(error)
                continue
            made[name, source.label] = [replace(one, samples=one.samples[: plan.sizes.stress]) for one in found]
            if not plan.scope.full:
                break
        if not any(name == key[0] for key in made):
            notes.append(f"stress {name} was left out: {reason or 'no data set has passages'}")
    return made, notes


def run_causes(shared: ModelStudy) -> None:
    """Ask the same questions under interventions, each with its matched random control, on the stress tests' data.

    The answers without interventions are generated again, because effects are measured along each of their steps.
    """
    if is_state_space(shared.lens.config):
        shared.notes.append(
            f"causes of {shared.model} were left out: interventions change softmax attention, and {NO_ATTENTION}"
        )
        return
    plan = shared.plan
    source = min(shared.sources, key=lambda source: source.name in KNOWN)  # not memorised
    specs, seeds = choose_interventions(plan, shared.lens.shape["layers"] or 1)
    manifest = plan.manifest({"model": shared.model, "interventions": specs, "controls": seeds}, [shared.model])
    with RunFolder.create(shared.folder.inside(CAUSES), manifest, resume=True) as folder:
        shared.tables.append(
            ablate(
                [shared.model],
                {source.label: first(source, plan.sizes.causes, plan)},
                specs,
                seeds=seeds,
                sampling=plan.sampling,
                reading=plan.reading,
                run=plan.run,
                folder=folder,
                watch=shared.watch,
                engine=shared.engine,
                worker=shared.worker,
            )
        )
        folder.finish()


def choose_interventions(plan: StudyPlan, layers: int) -> tuple[list[str], list[int]]:
    """Return the interventions and the seeds of their controls."""
    if plan.scope.interventions is not None:
        return list(plan.scope.interventions), list(SEEDS)
    return (standard(layers), [0, 1]) if plan.scope.full else (list(USUAL), list(SEEDS))


EXPERIMENTS = {"traces": trace_experiments, "knowledge": knowledge_experiments, "stress": stress_tests}
OTHERS: dict[str, Callable[[ModelStudy], None]] = {"texts": run_texts, "causes": run_causes}


def first(source: DataSource, count: int | None, plan: StudyPlan) -> list[Sample]:
    """Return the first questions of a data set after the offset; with a seed, in a random order."""
    held, seed = list(source.samples())[plan.scope.offset :], plan.reading.seed
    if seed is not None:
        held.sort(key=lambda sample: random.Random(f"{seed} {sample.id}").random())
    return held[:count]
