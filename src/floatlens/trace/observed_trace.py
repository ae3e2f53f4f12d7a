"""Make traces from the forward passes of a user's own loop, one per row of the batch, each as if its row had run alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.trace.pass_log import ObservedStep, PassLog, span
from floatlens.trace.recorder import ModelFacts, Recorder, make_trace
from floatlens.trace.trace import Trace

if TYPE_CHECKING:
    from floatlens.lens import Lens


def traces_of(log: PassLog, facts: Lens | ModelFacts, generation: int) -> list[Trace]:
    """The traces of a generation, one per row."""
    observed = passes_of(log, generation)
    number, family, session = observed[0].generation, log.family, log.session
    diffusion, shifted = log.diffusion[number], log.shifted(number)
    steps = list(as_steps(log, observed, facts))
    B = len(steps[0].tokens_BT)
    lasts = [sum(1 for step in steps if step.running_B is None or step.running_B[row]) - 1 for row in range(B)]
    spans = [span(observed[last].real_BT, row, steps[last].tokens_BT.shape[1]) for row, last in enumerate(lasts)]
    ends = [max(first, min(start, end)) for start, (first, end) in zip(log.starts[number], spans, strict=False)]
    P, N = max(ends), max(step.after_BT.shape[1] for step in steps)
    tokens_BP = steps[0].tokens_BT[:, :P]
    prompts = [
        replace(log.prompt(row), ids=tokens_BP[row, first:end].tolist())
        for row, ((first, _), end) in enumerate(zip(spans, ends, strict=True))
    ]
    padded = any(step.real_BT is not None for step in observed)
    real_BP = torch.ones_like(tokens_BP, dtype=torch.bool) if padded else None
    batch = PromptBatch(prompts, tokens_BP, real_BP, [first for first, _ in spans])
    recorder = Recorder(
        batch,
        session.statistics,
        batch.layout(N - P, shifted),
        steps=range(len(steps)),
        shifted=shifted,
        special_ids=facts.special_ids,
        revises=any(revised(step, log.mask) for step in steps),
    )
    for step, one in zip(steps, observed, strict=False):
        writes = bool(step.committed_BT.any())
        recorder.add(step, {n: value for n, value in one.results.items() if writes or n != "received_writing"})
    for row, ((_, end), last) in enumerate(zip(spans, lasts, strict=True)):
        if end < steps[last].tokens_BT.shape[1]:  # padded on the right, as in a batch of the Trainer
            recorder.length[row] = end
    both = session.bidirectional if session.bidirectional is not None else diffusion
    attributes: dict[str, Any] = {
        "family": family.name if family is not None else "observed",
        "kind": "mdm" if diffusion or (family is None and both) else "arm",
        "attention": family.attention if family is not None else "bidirectional" if both else "causal",
        "cached": int(any(step.start for step in observed)),
        "sampler": "observed",
        "seed": 0,
        "implementation": session.used,
        "final_tokens_from": "given" if number in log.finished else "most likely tokens of the last step",
        "interventions": [],
        "built_from": None,
    }
    datasets = [add_cross(recorder.dataset(row), observed, row) for row in range(B)]
    return [make_trace(data, facts, batch, row, **attributes) for row, data in enumerate(datasets)]


def passes_of(log: PassLog, generation: int) -> list[ObservedStep]:
    """The passes of a generation from the end of its prompt on; an error if no trace can be made of them."""
    if getattr(getattr(log.module, "config", None), "model_type", None) == "diffusion_gemma":
        raise FloatLensError(
            "observe makes no trace of DiffusionGemma, whose canvas of random tokens does not show what a pass wrote; "
            "use floatlens.load(...).trace(...), which writes the tokens of its generate() with the same seed"
        )
    numbers = sorted({step.generation for step in log.steps})
    if not numbers:
        raise FloatLensError("no forward pass was observed; run the model inside the `with` block")
    try:
        number = numbers[generation]
    except IndexError:
        raise FloatLensError(f"generation {generation} does not exist; {len(numbers)} were observed") from None
    if reason := log.problems.get(number):
        raise FloatLensError(f"no trace can be made of this generation: {reason}")
    if log.family is not None and log.family.kind == "mdm" and not log.family.mask_token:
        raise FloatLensError(
            f"family {log.family.name!r} writes without mask tokens, so its passes do not show what they commit; use "
            f"Lens.trace"
        )
    start = max(log.starts[number])
    steps = [step for step in log.steps if step.generation == number]
    return [step for step in steps if step.tokens_BT is not None and step.tokens_BT.shape[1] >= start]


def as_steps(log: PassLog, observed: Sequence[ObservedStep], facts: Lens | ModelFacts) -> Iterator[Step]:
    """The passes as steps; a row of an autoregressive model runs up to the step that writes its end token."""
    diffusion, end_ids = log.diffusion[observed[0].generation], torch.tensor(list(facts.end_ids), dtype=torch.long)
    running_B = torch.ones(1, dtype=torch.bool)
    for index, one in enumerate(observed):
        assert one.tokens_BT is not None
        tokens_BT = one.tokens_BT[: log.session.rows]
        B, T = tokens_BT.shape
        after_BT = tokens_BT if one.after_BT is None else one.after_BT[:B]
        if index == len(observed) - 1:
            writes = not diffusion and (
                one.is_known or len(observed) > 1
            )  # a single pass that was not continued does not
            after_BT = after_BT[:, : T + writes]
        committed_BT = (torch.arange(after_BT.shape[1]) >= T).expand_as(after_BT).clone()
        if diffusion:
            committed_BT[:, T:] = False
            committed_BT[:, :T] = (after_BT[:, :T] != tokens_BT) & (after_BT[:, :T] != log.mask)
        confidence_BT = torch.full(after_BT.shape, torch.nan)
        if one.confidence_BT is not None:
            known = min(one.confidence_BT.shape[1], after_BT.shape[1])
            confidence_BT[:, :known] = one.confidence_BT[:B, :known]
        active = None if one.active is None or len(one.active) == T else one.active
        running_B = running_B.expand(B)
        some_B = None if bool(running_B.all()) else running_B
        committed_BT &= running_B[:, None]
        yield Step(index, tokens_BT, after_BT, committed_BT, confidence_BT, active, some_B)
        if not diffusion:
            running_B = running_B & ~torch.isin(after_BT[:, T:], end_ids).any(1)
            if not bool(running_B.any()):
                return


def revised(step: Step, mask: int) -> bool:
    """Whether a step replaces tokens that are not masks."""
    before_BT = step.tokens_BT
    after_BT = step.after_BT[:, : before_BT.shape[1]]
    return bool(((before_BT != after_BT) & (before_BT != mask) & (after_BT != mask)).any())


def add_cross(data: xr.Dataset, steps: Sequence[ObservedStep], row: int) -> xr.Dataset:
    """Add cross-attention to a trace's data: `cross_received` (step, cross_layer, head, source), `cross_entropy`."""
    crosses = [steps[int(number)].cross for number in data["step"].values]
    layers = sorted(crosses[0].get("received", {}))
    if not layers:
        return data
    received, entropy = (
        torch.stack([torch.stack([cross[name][layer][row] for layer in layers]) for cross in crosses]).numpy()
        for name in ("received", "entropy")
    )
    head = "head" if data.sizes.get("head") == received.shape[2] else "cross_head"
    return data.assign(
        cross_received=(("step", "cross_layer", head, "source"), received),
        cross_entropy=(("step", "cross_layer", head), entropy),
    ).assign_coords(cross_layer=layers)
