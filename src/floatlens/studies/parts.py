"""The work of a study on one model: its parts in the model's own run folder, independent of failures in other parts.

`plan.PARTS` has their order, and findings name the parts that they need.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.data.template import parse
from floatlens.decode.replay import can_replay
from floatlens.errors import FloatLensError
from floatlens.evaluation.ablate import ablate
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.evaluation.conditions import conditions, standard
from floatlens.evaluation.loop import Experiment, FirstAsked, ModelWorker, run_experiments
from floatlens.evaluation.sources import CLOSED, OPEN, SHORT, DataSource, Key, with_gold_at
from floatlens.evaluation.stress import STRESSES, StressLevel, StressOptions, stress_experiments
from floatlens.findings.drift import OTHER_TASK, OTHER_WORDS, UNTRAINED
from floatlens.findings.samples import split_id
from floatlens.interventions.intervention import NO_ATTENTION
from floatlens.models.describe import is_state_space
from floatlens.options import Recording
from floatlens.store.engine import Engine, ProgressCallback, as_one
from floatlens.store.folder import ERRORS, PARTS, RunFolder
from floatlens.store.runs import CAUSES, REPLAYS, TEXTS
from floatlens.studies.analyse import reason_of
from floatlens.studies.plan import StudyPlan
from floatlens.studies.texts import run_texts
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from floatlens.lens import Lens

INSIDE = (CAUSES, TEXTS, REPLAYS)  # runs inside a model's run in which a question can fail
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
SEEDS = (0,)  # seeds of the controls; --full uses two for the finding causes
REPLAYED = 12  # number of questions that a claim needs; --full replays all traced questions
INSTRUCTIONS = {
    OTHER_WORDS: "Write the answer to the question, and nothing but the answer.\n\n{passages}\n\nQuestion: {question}",
    OTHER_TASK: "Translate the question into French. Reply with the translation only.\n\n{passages}\n\nQuestion: {question}",
}


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
    worker: ModelWorker
    engine: Engine | None
    watch: ProgressCallback | None
    first: FirstAsked = field(default_factory=dict)
    rows: dict[Key, AnswerRecord] = field(default_factory=dict)
    traced: list[str] = field(default_factory=list)  # the names of the traces
    tables: list[pd.DataFrame] = field(default_factory=list)  # answers with additional columns
    notes: list[str] = field(default_factory=list)

    def folder_inside(self, name: str, **asked: Any) -> RunFolder:
        """Create or resume a run inside the model's run."""
        manifest = self.plan.manifest({"model": self.model, **asked}, [self.model])
        return RunFolder.create(self.folder.inside(name), manifest, resume=True)


def study_model(
    model: str,
    plan: StudyPlan,
    path: str | Path,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Run all parts for a model; a killed run resumes, and a finished one is not repeated.

    Returns the seconds per part, the reasons of failed parts, and notes.
    """
    manifest = plan.manifest({"model": model, **plan.asked()}, [model])
    asked = {name: value for name, value in manifest["asked"].items() if name != "models"}
    asked = json.loads(json.dumps(asked, default=str))
    with (
        RunFolder.create(path, manifest, resume=True) as folder,
        engine.keep_workers() if engine else nullcontext(),
    ):
        storage = folder.storage
        failures = any(storage.exists(f"{inside}{ERRORS}") for inside in ("", *(f"{name}/" for name in INSIDE)))
        before = json.loads(storage.read(PARTS)) if storage.exists(PARTS) else {}
        if before and not before["failed"] and not failures and before.get("asked") == asked:
            return before
        if before:
            storage.remove(PARTS)
        worker = ModelWorker(plan.load)
        shared = ModelStudy(
            plan, model, worker.planning_lens(model, engine is None), plan.sources(), folder, worker, engine, watch
        )
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        for name in plan.parts:
            began = time.perf_counter()
            try:
                OTHERS[name](shared) if name in OTHERS else ask_questions(shared, name)
            except Exception as error:  # any failure is reported in its section; the other parts continue
                logging.getLogger(__name__).debug("part %s of %s failed", name, model, exc_info=True)
                failed[name] = reason_of(error)
            seconds[name] = round(time.perf_counter() - began, 2)
        answers = answers_table(list(shared.rows.values()))
        folder.write_table("answers", pd.concat([answers, *shared.tables], ignore_index=True))
        status: dict[str, Any] = {"model": model, "seconds": seconds, "failed": failed, "notes": shared.notes}
        status |= {"asked": asked, "traces": None if "traces" in failed else shared.traced}
        folder.write_text(PARTS, json.dumps(status, indent=2, ensure_ascii=False) + "\n")
        folder.finish()
        return status


# The parts that ask questions


def ask_questions(shared: ModelStudy, part: str) -> None:
    """Answer the questions of a part; those that an earlier part or a killed run has answered are not asked again."""
    plan = shared.plan
    jobs, notes = EXPERIMENTS[part](plan, shared.model, shared.sources)
    shared.notes += notes
    watch = as_one(shared.watch, f"{shared.model}, {part}", sum(job.count or 0 for job in jobs))
    how: dict[str, Any] = {"engine": shared.engine, "watch": watch, "first": shared.first}
    records, _ = run_experiments(jobs, shared.worker, shared.folder, **how)
    moved = part == "traces" and plan.reading.gold_at  # asked three times, say; Table 1 counts a question once
    shared.rows.update({each.key: each for each in records if not (moved and each.condition == OPEN)})
    shared.traced += [each.trace_id for each in records if part == "traces"]


def trace_experiments(plan: StudyPlan, model: str, sources: Sequence[DataSource]) -> tuple[list[Experiment], list[str]]:
    """Trace short questions without passages, and questions with passages; their answers serve Table 1."""
    jobs = []
    for condition, size in ((SHORT, "short"), (OPEN, "traces")):
        for source in sources if condition in plan.traced else ():
            samples = first(source, plan.sizes[size], plan)
            if condition == OPEN:
                samples = list(with_gold_at(samples, plan.reading.gold_at))
            job = _experiment(plan, model, source, condition, samples)
            jobs.append(replace(job, recording=plan.recording(condition)))
    return jobs, []


def knowledge_experiments(
    plan: StudyPlan, model: str, sources: Sequence[DataSource]
) -> tuple[list[Experiment], list[str]]:
    """Ask every question without and with passages, for Table 1."""
    asked = [(source, first(source, plan.sizes["knowledge"], plan)) for source in sources]
    return [_experiment(plan, model, source, how, several) for source, several in asked for how in (CLOSED, OPEN)], []


def stress_tests(plan: StudyPlan, model: str, sources: Sequence[DataSource]) -> tuple[list[Experiment], list[str]]:
    """Ask the same questions at increasing difficulty, for each stress test on the first suitable data set."""
    made, notes = stress_levels(plan, sources)
    under = conditions(plan.scope.stress_interventions, None, SEEDS)
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
    return Experiment(model, source.label, condition, samples, plan.sampling, plan.reading, plan.run.batch_size)


def stress_levels(
    plan: StudyPlan, sources: Sequence[DataSource]
) -> tuple[dict[tuple[str, str], list[StressLevel]], list[str]]:
    """Return levels by stress and data set, and a note for each stress without a suitable data set.

    Distractors are drawn from all questions; only the first ones are asked.
    """
    made: dict[tuple[str, str], list[StressLevel]] = {}
    notes = []
    options = StressOptions(seed=plan.reading.seed or 0)
    for name in STRESSES:
        if plan.scope.stresses is not None and name not in plan.scope.stresses:
            continue
        reason = "no data set has passages"
        for source in sorted(sources, key=lambda one: (one.name != PREFERRED.get(name), one.name in KNOWN)):
            try:
                found = STRESSES[name].levels(first(source, None, plan), options)
            except FloatLensError as error:
                reason = str(error)
                continue
            made[name, source.label] = [replace(one, samples=one.samples[: plan.sizes["stress"]]) for one in found]
            if not plan.scope.full:
                break
        if not any(name == key[0] for key in made):
            notes.append(f"stress {name} was left out: {reason}")
    return made, notes


def first(source: DataSource, count: int | None, plan: StudyPlan) -> list[Sample]:
    """Return the first questions of a data set after the offset; with a seed, in a random order."""
    held, seed = list(source.samples())[plan.scope.offset :], plan.reading.seed
    if seed is not None:
        held.sort(key=lambda sample: random.Random(f"{seed} {sample.id}").random())
    return held[:count]


# The other parts


def run_causes(shared: ModelStudy) -> None:
    """Ask the same questions under interventions, each with its matched random control, on the stress tests' data.

    The answers without interventions are generated again, because effects are measured along each of their steps.
    """
    plan, lens = shared.plan, shared.lens
    if is_state_space(lens.config):
        reason = f"interventions change softmax attention, and {NO_ATTENTION}"
        shared.notes.append(f"causes of {shared.model} were left out: {reason}")
        return
    source = min(shared.sources, key=lambda source: source.name in KNOWN)  # not memorised
    specs, seeds = choose_interventions(plan, lens)
    with shared.folder_inside(CAUSES, interventions=specs, controls=seeds) as folder:
        shared.tables.append(
            ablate(
                [shared.model],
                {source.label: first(source, plan.sizes["causes"], plan)},
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


def choose_interventions(plan: StudyPlan, lens: Lens) -> tuple[list[str], list[int]]:
    """Return the interventions and the seeds of their controls."""
    if plan.scope.interventions is not None:
        return list(plan.scope.interventions), list(SEEDS)
    return (standard(lens.shape["layers"] or 1), [0, 1]) if plan.scope.full else (list(USUAL), list(SEEDS))


def run_replays(shared: ModelStudy) -> None:
    """Replay a masked diffusion model's own answers, in the order in which it wrote them, with one thing changed.

    Under the instruction of another task, under the same instruction in other words, and through the same network with
    redrawn weights (the null of a network without training).
    """
    plan, model = shared.plan, shared.model
    if not is_replayed(shared.lens) or SHORT not in plan.traced:
        return
    asked = {name for name in shared.traced if split_id(name)[1] == SHORT}
    short = sorted((name, path) for name, path in shared.folder.samples() if name in asked)
    traces = [Trace.open(path) for _, path in (short if plan.scope.full else short[:REPLAYED])]
    watch = as_one(shared.watch, f"{model}, replays", (1 + len(INSTRUCTIONS)) * len(traces))
    recording = Recording(record=("received",), detail=plan.scope.detail)
    with shared.folder_inside(REPLAYS, replays=[UNTRAINED, *INSTRUCTIONS]) as folder:

        def replay(worker: ModelWorker, *variants: str) -> None:
            made = (replayed_prompt(shared.lens, trace, variant) for trace in traces for variant in variants)
            prompts = [prompt for prompt in made if prompt is not None]
            size = plan.run.batch_size
            job = Experiment(model, "", "", prompts, plan.sampling, plan.reading, size, recording=recording)
            if prompts:
                run_experiments([job], worker, folder, engine=shared.engine, watch=watch)

        replay(shared.worker, *INSTRUCTIONS)
        shared.lens, shared.worker.held = shared.worker.planning_lens(model, False), None  # no room for two
        replay(ModelWorker(replace(plan.load, untrained=True)), UNTRAINED)
        folder.finish()


def is_replayed(lens: Lens) -> bool:
    """Whether a study replays the answers of a model."""
    return lens.family.kind == "mdm" and can_replay(lens.sampler)


def replayed_prompt(lens: Lens, own: Trace, variant: str) -> Prompt | None:
    """The prompt of a trace, or its question under another instruction, with the answer to replay in its own order.

    None for a trace without a question, which has no instruction to change.
    """
    P = own.prompt_length
    prompt = Prompt(
        str(own.data.attrs.get("prompt", "")),
        own.final_tokens[:P].tolist(),
        [region for region in own.regions if region.end <= P],
        own.question,
    )
    if variant in INSTRUCTIONS:
        if not own.question:
            return None
        prompt = lens.prompt(own.question, template=parse(INSTRUCTIONS[variant]))
    data, _, number = split_id(str(own.data.attrs["sample_id"]))
    made = lens.with_answer(prompt, own.written, own.order)
    return replace(made, sample_id=f"{data}, {variant}, {number}", answers=list(own.answers))


EXPERIMENTS = {"traces": trace_experiments, "knowledge": knowledge_experiments, "stress": stress_tests}
OTHERS: dict[str, Callable[[ModelStudy], None]] = {"texts": run_texts, "causes": run_causes, "replays": run_replays}
