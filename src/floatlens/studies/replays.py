"""Identical text: each model replays the answers of the models that it is compared with.

This needs the answers of all models, so it runs after every part of every model. The traces are stored as a separate run
inside the model's run; the finding `drift` reads them (`findings.drift`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatlens.data.prompt import Prompt
from floatlens.decode.replay import can_replay
from floatlens.evaluation.loop import Experiment, Journal, run_experiments
from floatlens.evaluation.sources import SHORT
from floatlens.evaluation.worker import ModelWorker
from floatlens.findings.drift import FEWEST_TOKENS
from floatlens.findings.finding import condition_of
from floatlens.findings.received import answer_positions
from floatlens.models.checkpoint import find
from floatlens.options import Recording
from floatlens.store.engine import Engine, ProgressCallback, as_one
from floatlens.store.folder import RunFolder
from floatlens.store.local import LocalEngine
from floatlens.store.runs import REPLAYS
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.studies.plan import StudyPlan

REPLAYED = 12  # number of questions that a claim needs; --full replays all traced questions
RECORD = ("received", "received_writing")


def compared(plan: StudyPlan) -> dict[str, list[str]]:
    """Return the models whose answers each model replays: those of the other kind, and its own.

    An autoregressive model does not replay its own answer, which was written in this order.
    """
    if "drift" not in plan.findings or SHORT not in plan.traced:
        return {}
    found = {model: find(model, plan.load) for model in plan.models}
    models = [model for model, each in found.items() if can_replay(each.sampler)]
    kinds = {model: found[model].family.kind for model in models}
    others = {model: [other for other in models if kinds[other] != kinds[model]] for model in models}
    return {m: [*([m] if kinds[m] == "mdm" else []), *rest] for m, rest in others.items() if rest}


def replay_answers(
    model: str,
    sources: Sequence[str],
    plan: StudyPlan,
    homes: Mapping[str, str | Path],
    engine: Engine | None = None,
    watch: ProgressCallback | None = None,
) -> int:
    """Replay the answers of `sources` through a model, and return how many; `homes` are the runs of all models compared."""
    does, worker = engine or LocalEngine(), ModelWorker(plan.load)
    runs = {name: RunFolder.open(home) for name, home in homes.items()}
    manifest = plan.manifest({"model": model, "replays": list(sources)}, [model])
    with RunFolder.create(runs[model].inside(REPLAYS), manifest, resume=True) as folder, does.keep_workers():
        lens = worker.planning_lens(model, does.in_process)
        questions = chosen_questions(runs, None if plan.scope.full else REPLAYED)
        prompts = [
            replayed_prompt(lens, traces[model], traces[source], sample_id=f"{data}, replay of {source}, {number}")
            for sample, traces in questions.items()
            for data, _, number in [sample.rsplit(", ", 2)]
            for source in sources
        ]
        if prompts:
            recording = Recording(record=RECORD, detail=plan.scope.detail)
            how: dict[str, Any] = {"batch_size": plan.run.batch_size, "recording": recording}
            job = Experiment(model, "", "", prompts, plan.sampling, plan.reading, **how, count=len(prompts))
            run_experiments(
                [job], worker, Journal(folder), engine=does, watch=as_one(watch, f"{model}, replays", len(prompts))
            )
        folder.finish()
        return len(prompts)


def chosen_questions(runs: Mapping[str, RunFolder], count: int | None) -> dict[str, dict[str, Trace]]:
    """Return the first short questions to which every model wrote enough tokens, with the trace of each model."""
    paths = {model: dict(run.samples()) for model, run in runs.items()}
    common = set.intersection(*(set(found) for found in paths.values()))
    chosen: dict[str, dict[str, Trace]] = {}
    for sample in sorted(name for name in common if condition_of(name) == SHORT):
        if len(chosen) == count:
            break
        traces = {model: Trace.open(found[sample]) for model, found in paths.items()}
        if all(len(answer_positions(trace)) >= FEWEST_TOKENS for trace in traces.values()):
            chosen[sample] = traces
    return chosen


def replayed_prompt(lens: Lens, own: Trace, source: Trace, sample_id: str) -> Prompt:
    """Return the prompt of the model's own trace, with the answer of another trace to replay, up to its end token.

    The tokens are those of the other model if both tokenizers agree, otherwise its text is tokenised, with an end token.
    """
    P = own.prompt_length
    regions = [region for region in own.regions if region.end <= P]
    prompt = Prompt(str(own.data.attrs.get("prompt", "")), own.final_tokens[:P].tolist(), regions, own.question)
    ids = [int(i) for i in source.final_tokens[answer_positions(source)]]
    pieces = source._from_json("vocabulary", {})
    if lens.token_strings(ids) != {str(i): pieces.get(str(i)) for i in ids}:
        ended = ids[-1] in source._from_json("special_ids", [])
        answer = lens.with_answer(prompt, source.answer).script
        assert answer is not None
        ids = [*answer.ids, *(lens.end_ids[:1] if ended else ())]
    return replace(lens.with_answer(prompt, ids), sample_id=sample_id, answers=list(own.answers))
