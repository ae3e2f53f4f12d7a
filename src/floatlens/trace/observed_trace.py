"""Make a Trace from the forward passes of a user's own loop: one row of the batch, as if it had run alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
import xarray as xr

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.trace.labels import EVIDENCE_OVER, ModelFacts, make_trace
from floatlens.trace.pass_log import ObservedStep, PassLog, span
from floatlens.trace.recorder import GROWING, Recorder
from floatlens.trace.trace import Trace


def trace_of(log: PassLog, facts: ModelFacts, *, row: int, generation: int, sample_id: str = "") -> Trace:
    """The trace of one row of a generation."""
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
    steps = [step for step in log.steps if step.generation == number]
    tokens_BT = steps[-1].tokens_BT
    if tokens_BT is None:
        raise FloatLensError("the model was not called with token ids, so there is no trace; `results` holds each pass")
    if not 0 <= row < tokens_BT.shape[0]:
        raise FloatLensError(f"row {row} does not exist; the batch has {tokens_BT.shape[0]}")
    start = log.starts[number][row]
    steps = [step for step in steps if step.tokens_BT is not None and step.tokens_BT.shape[1] >= start]
    diffusion = log.is_diffusion(number)
    moments = row_steps(log, steps, row, facts.end_ids)
    steps = steps[: len(moments)]
    length = moments[-1].tokens_BT.shape[1]
    first, last = span(steps[-1].real_BT, row, length)
    if last == length:
        last = moments[-1].after_BT.shape[1]
    start = min(start, last)  # a prompt that is padded on the right, as in a batch of the Trainer
    prompt = replace(log.prompt(row), ids=moments[0].tokens_BT[0, first:start].tolist())
    shifted = log.family.shifted if log.family is not None else not diffusion
    batch = PromptBatch([prompt], torch.tensor([prompt.ids]).long(), None, [0])
    recorder = Recorder(
        batch,
        log.session.statistics,
        batch.layout(last - start, shifted),
        steps=range(len(moments)),
        shifted=bool(shifted),
        special_ids=facts.special_ids,
        revises=any(revised(moment, log.mask) for moment in moments),
    )
    for step, moment in zip(steps, moments, strict=True):
        results = {
            name: {layer: crop(log, step, name, value[row], (first, last), start) for layer, value in layers.items()}
            for name, layers in step.results.items()
        }
        recorder.add(cut(moment, first, last), results)
    family, session = log.family, log.session
    both = session.bidirectional if session.bidirectional is not None else diffusion
    return make_trace(
        add_cross(recorder.dataset(0), steps, row),
        facts,
        batch,
        sample_id=sample_id,
        family=family.name if family is not None else "observed",
        kind="mdm" if diffusion or (family is None and both) else "arm",
        attention=family.attention if family is not None else "bidirectional" if both else "causal",
        cached=int(any(step.start for step in steps)),
        sampler="observed",
        seed=0,
        implementation=session.used,
        final_tokens_from="given" if number in log.finals else "most likely tokens of the last step",
        evidence_over=EVIDENCE_OVER,
        interventions=[],
        built_from=None,
    )


def revised(step: Step, mask: int) -> bool:
    """Whether a step replaces tokens that are not masks."""
    before_BT = step.tokens_BT
    after_BT = step.after_BT[:, : before_BT.shape[1]]
    return bool(((before_BT != after_BT) & (before_BT != mask) & (after_BT != mask)).any())


def row_steps(log: PassLog, steps: Sequence[ObservedStep], row: int, end_ids: Collection[int]) -> list[Step]:
    """The steps of a row; those of an autoregressive model up to the one that writes its end token."""
    made: list[Step] = []
    diffusion = log.is_diffusion(steps[0].generation)
    for index, step in enumerate(steps):
        assert step.tokens_BT is not None
        tokens_T = step.tokens_BT[row]
        T, after_T = len(tokens_T), tokens_after(log, steps, index, row)
        committed_T = torch.arange(len(after_T)) >= T
        if diffusion:
            committed_T[:T] = (after_T[:T] != tokens_T) & (after_T[:T] != log.mask)
            committed_T[T:] = False
        confidence_T = torch.full((len(after_T),), torch.nan)
        if step.confidence_BT is not None:
            known = step.confidence_BT[row, : len(after_T)]
            confidence_T[: len(known)] = known
        active = None if step.active is None or len(step.active) == T else step.active
        made.append(Step(index, tokens_T[None], after_T[None], committed_T[None], confidence_T[None], active))
        if not diffusion and any(int(token) in end_ids for token in after_T[T:]):
            break
    return made


def tokens_after(log: PassLog, steps: Sequence[ObservedStep], index: int, row: int) -> torch.Tensor:
    """The tokens of a row after a step: those of the next pass, else the finished ones, else the most likely ones."""
    step, proposed_BT = steps[index], steps[index].proposed_BT
    assert step.tokens_BT is not None
    tokens_T = step.tokens_BT[row]
    if step.after_BT is not None:
        known_T = step.after_BT[row]
        longer = index == len(steps) - 1 and len(known_T) > len(tokens_T) + 1
        return known_T[: proposed_BT.shape[1]] if longer and proposed_BT is not None else known_T
    if proposed_BT is None:
        return tokens_T
    if log.is_diffusion(step.generation):
        return torch.where(tokens_T == log.mask, proposed_BT[row], tokens_T)
    return torch.cat([tokens_T, proposed_BT[row, len(tokens_T) :]]) if len(steps) > 1 else tokens_T  # one pass: nothing


def cut(step: Step, first: int, last: int) -> Step:
    """A step without the positions outside first..last."""
    active = step.active
    if active is not None:
        active = range(max(active.start, first) - first, min(active.stop, last) - first)
    names = ("tokens_BT", "after_BT", "committed_BT", "confidence_BT")
    return replace(step, active=active, **{name: getattr(step, name)[:, first:last] for name in names})


def crop(
    log: PassLog, step: ObservedStep, name: str, value: torch.Tensor, span: tuple[int, int], start: int
) -> torch.Tensor:
    """A row's result without the row's padding: (1, *dims)."""
    assert step.tokens_BT is not None
    T, (first, last) = step.tokens_BT.shape[1], span
    for axis, dim in enumerate(log.session.statistics[name].dims):
        count = value.shape[axis]
        if dim == "query":
            begin = step.active.start if step.active is not None else T - count
            value = value.narrow(axis, max(0, first - begin), min(last, begin + count) - max(first, begin))
        elif dim in GROWING:
            value = value.narrow(axis, first, min(last, count) - first)
        elif dim == "writer":
            # Writing rows are stored from the first one of the batch; the recorder counts from the first of this row.
            shifted = log.family.shifted if log.family is not None else not log.is_diffusion(step.generation)
            earliest = min(max(0, s - int(shifted)) for s in log.starts[step.generation])
            skipped = min(count, max(0, start - int(shifted) - earliest))
            value = value.narrow(axis, skipped, count - skipped)
    if name == "evidence":
        value = value.clone()
        value[..., 1] -= first
    return value[None]


def add_cross(data: xr.Dataset, steps: Sequence[ObservedStep], row: int) -> xr.Dataset:
    """Add cross-attention to a trace's data: `cross_received` (step, cross_layer, head, source), `cross_entropy`."""
    steps = [steps[int(number)] for number in data["step"].values]
    layers = sorted(steps[0].cross.get("received", {}))
    if not layers:
        return data
    received = torch.stack([torch.stack([s.cross["received"][layer][row] for layer in layers]) for s in steps])
    entropy = torch.stack([torch.stack([s.cross["entropy"][layer][row] for layer in layers]) for s in steps])
    head = "head" if data.sizes.get("head") == received.shape[2] else "cross_head"
    return data.assign(
        cross_received=(("step", "cross_layer", head, "source"), received.numpy()),
        cross_entropy=(("step", "cross_layer", head), entropy.numpy()),
    ).assign_coords(cross_layer=layers)
