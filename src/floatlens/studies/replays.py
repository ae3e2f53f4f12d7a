"""Replays: each masked diffusion model's own answers again, in the order in which it wrote them, with one thing changed.

Through the same network with redrawn weights (the null of a network without training), under the instruction of another
task, and under the same instruction in other words. The traces are stored as a separate run inside the model's run; the
finding `drift` reads them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.data.prompt import Prompt
from floatlens.data.template import parse
from floatlens.decode.replay import can_replay
from floatlens.evaluation.loop import Experiment, Journal, ModelWorker, run_experiments
from floatlens.evaluation.sources import SHORT
from floatlens.findings.drift import OTHER_TASK, OTHER_WORDS, UNTRAINED
from floatlens.findings.finding import condition_of
from floatlens.models.checkpoint import find
from floatlens.options import Recording
from floatlens.store.engine import Engine, LocalEngine, ProgressCallback, as_one
from floatlens.store.folder import RunFolder
from floatlens.store.runs import REPLAYS
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.studies.plan import StudyPlan

REPLAYED = 12  # number of questions that a claim needs; --full replays all traced questions
INSTRUCTIONS = {
    OTHER_WORDS: "Write the answer to the question, and nothing but the answer.\n\n{passages}\n\nQuestion: {question}",
    OTHER_TASK: "Translate the question into French. Reply with the translation only.\n\n{passages}\n\nQuestion: {question}",
}


def replaying(plan: StudyPlan) -> list[str]:
    """The models whose answers are replayed: masked diffusion models whose sampler can, if short questions are traced."""
    if "drift" not in plan.findings or SHORT not in plan.traced:
        return []
    known = {model: find(model, plan.load) for model in plan.models}
    return [m for m, each in known.items() if each.family.kind == "mdm" and can_replay(each.sampler)]


def replay_answers(
    model: str,
    plan: StudyPlan,
    home: str | Path,
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> int:
    """Replay the answers of a model's run, and return how many traces that makes."""
    does, run = engine or LocalEngine(), RunFolder.open(home)
    short = sorted((name, path) for name, path in run.samples() if condition_of(name) == SHORT)
    traces = [Trace.open(path) for _, path in (short if plan.scope.full else short[:REPLAYED])]
    manifest = plan.manifest({"model": model, "replays": [UNTRAINED, *INSTRUCTIONS]}, [model])
    count = 0
    with RunFolder.create(run.inside(REPLAYS), manifest, resume=True) as folder:
        journal = Journal(folder)
        recording = Recording(record=("received",), detail=plan.scope.detail)
        how: dict[str, Any] = {"batch_size": plan.run.batch_size, "recording": recording}
        for variants in ([UNTRAINED], list(INSTRUCTIONS)):
            worker = ModelWorker(replace(plan.load, untrained=variants == [UNTRAINED]))
            with does.keep_workers():
                lens = worker.planning_lens(model, does.in_process)
                prompts = [made for t in traces for v in variants if (made := replayed_prompt(lens, t, v)) is not None]
                job = Experiment(model, "", "", prompts, plan.sampling, plan.reading, **how, count=len(prompts))
                if prompts:
                    shown = as_one(watch, f"{model}, replays", len(prompts))
                    run_experiments([job], worker, journal, engine=does, watch=shown)
            count += len(prompts)
        folder.finish()
    return count


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
    data, _, number = str(own.data.attrs["sample_id"]).rsplit(", ", 2)
    made = lens.with_answer(prompt, own.written, own.order)
    return replace(made, sample_id=f"{data}, {variant}, {number}", answers=list(own.answers))
