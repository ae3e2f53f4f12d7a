"""What a study will do, and how long that takes: the size of each part, and the time of a few questions per model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from floatlens.evaluation.conditions import conditions
from floatlens.evaluation.loop import Experiment, ModelWorker, run_experiments
from floatlens.evaluation.sources import WITHOUT_PASSAGES
from floatlens.findings.finding import FINDINGS
from floatlens.findings.sink import CONTROLS, WINDOWED, WORDS
from floatlens.findings.window import LENGTH, read_text, reason_against
from floatlens.studies.parts import EXPERIMENTS, choose_interventions
from floatlens.studies.plan import StudyPlan
from floatlens.studies.texts import read_texts, split_texts, token_texts

ENOUGH = 1.0  # seconds of one question; a shorter one says little, and a batch is timed instead
PER_CONDITION = 2.0  # an intervention answers a question and runs along the steps of the plain answer
PER_FIGURE, PER_TRACE = 3.0, 0.1  # seconds that a finding takes to draw, and to read a trace
READINGS = 2 + len(WORDS) * (2 + len(CONTROLS))  # conditions under which a text is read


@dataclass(frozen=True)
class Estimate:
    """Questions and texts of all models by part, and the seconds of the whole study."""

    sizes: dict[str, int]
    seconds: float


def estimate(plans: Sequence[StudyPlan], jobs: int = 1) -> Estimate:
    """Time a few questions per model; `jobs` models run in parallel."""
    sizes: dict[str, int] = {}
    seconds, drawing = [], 0.0
    for plan in plans:
        for model in plan.models:
            worker = ModelWorker(plan.load)
            found = {part: _part(part, plan, model, worker) for part in plan.parts}
            seconds.append(sum(took for _, took in found.values()))
            sizes |= {part: sizes.get(part, 0) + count for part, (count, _) in found.items()}
    names = {name for plan in plans for name in plan.findings}
    reading = sum(FINDINGS[name].reads in ("traces", "both") for name in names) * sizes.get("traces", 0)
    drawing = (PER_FIGURE * len(names) + PER_TRACE * reading) / jobs
    return Estimate(sizes, max(sum(seconds) / min(jobs, len(seconds)), *seconds) + drawing)


def _part(part: str, plan: StudyPlan, model: str, worker: ModelWorker) -> tuple[int, float]:
    """The number of questions or texts of a part, and its seconds."""
    lens, sources = worker.lens(model), plan.sources()
    if part == "texts":
        if reason_against(lens):
            return 0, 0.0
        finding, tested = split_texts(token_texts(lens.tokenizer, read_texts(plan.scope.texts, plan.sizes.texts)))
        ids = next(iter(finding.values()))[:LENGTH]
        windows, last = (_timed(read_text, lens, ids, windows=way) for way in (True, False))
        per_text = len(WINDOWED) * windows + (READINGS - len(WINDOWED)) * last
        return len(finding) + len(tested) * READINGS, len(finding) * last + len(tested) * per_text
    if part == "causes":
        job = EXPERIMENTS["knowledge"](plan, model, sources[:1])[0][-1]
        specs, seeds = choose_interventions(plan, lens.shape["layers"] or 1)
        count = len(conditions(specs, None, seeds)) * min(plan.sizes.causes or job.count or 0, job.count or 0)
        return count, count * PER_CONDITION * _seconds_per_question(job, worker)
    jobs, _ = EXPERIMENTS[part](plan, model, sources)
    kinds: dict[tuple[bool, bool], list[Experiment]] = {}
    for job in jobs:
        kinds.setdefault((job.recording is None, job.condition in WITHOUT_PASSAGES), []).append(job)
    counts = {kind: sum(job.count or 0 for job in several) for kind, several in kinds.items()}
    seconds = sum(counts[kind] * _seconds_per_question(several[0], worker) for kind, several in kinds.items())
    return sum(counts.values()), seconds


def _seconds_per_question(job: Experiment, worker: ModelWorker) -> float:
    """The time of one question, or per question of a batch if one is quick."""
    for count in (1, job.batch_size):
        samples = list(islice(job.samples, count))
        seconds = _timed(run_experiments, [replace(job, samples=samples, count=len(samples))], worker)
        if seconds > ENOUGH:
            break
    return seconds / len(samples)


def _timed(work: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    began = time.perf_counter()
    work(*arguments, **options)
    return time.perf_counter() - began
