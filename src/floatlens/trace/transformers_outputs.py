"""Make a Trace from attention matrices that transformers returned (`output_attentions=True`), by a pass or `generate`.

No model is run. Statistics of the weights are computed (received attention, writing rows, entropy, flow). QK factors and
value norms need queries, keys and values, which these outputs do not have; `observe` records them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from floatlens.attention.prompt_batch import ANSWER, OTHER, PromptBatch
from floatlens.data.prompt import Prompt, Region
from floatlens.errors import FloatLensError
from floatlens.trace.labels import ModelFacts, make_trace
from floatlens.trace.observe import Regions, prompts_of
from floatlens.trace.trace import Trace

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StepWeights:
    """One forward pass of one row, without padding.

    tokens_T        ids of the input
    weights_LHQT    attention of its queries, the last of the sequence, on all keys
    confidence      probability of the token that was appended; NaN if it is not known
    """

    tokens_T: Array
    weights_LHQT: Array
    confidence: float = float("nan")


def from_transformers(
    outputs: Any,
    input_ids: Any = None,
    *,
    tokenizer: Any = None,
    attention_mask: Any = None,
    regions: Regions | None = None,
    row: int = 0,
    matrices: Sequence[str] = (),
    model: str = "",
    sample_id: str = "",
) -> Trace:
    """The trace of one row of a batch; see `Trace.from_transformers`."""
    if unknown := [name for name in matrices if name not in ("attention", "attention_mean")]:
        raise FloatLensError(
            f"matrices {unknown[0]!r} cannot be computed from attention; use attention or attention_mean"
        )
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        if getattr(outputs, name, None):
            raise FloatLensError("outputs of encoder-decoder models are not supported; run the model inside fl.observe")
    if getattr(outputs, "beam_indices", None) is not None:
        raise FloatLensError("beam search moves rows between steps, so there is no trace; generate with num_beams=1")
    attentions = getattr(outputs, "attentions", None)
    if not attentions or attentions[0] is None:
        raise FloatLensError(
            "the outputs hold no attention; load the model with attn_implementation='eager' and call it with "
            "output_attentions=True"
        )
    generated = not isinstance(attentions[0], torch.Tensor)
    mask = None if attention_mask is None else torch.as_tensor(attention_mask)[row].bool().cpu()
    if generated:
        steps = generated_steps(outputs, row, mask, ends_of(tokenizer))
        final, P = np.append(steps[-1].tokens_T, following(outputs, row, steps, mask)), len(steps[0].tokens_T)
    else:
        if input_ids is None:
            raise FloatLensError("the outputs of a forward pass do not hold their tokens; pass them as input_ids=")
        steps = [one_pass(attentions, torch.as_tensor(input_ids)[row].cpu(), row, mask)]
        final, P = steps[0].tokens_T, len(steps[0].tokens_T)
    prompt = next(iter(prompts_of(regions)), None)
    named = [
        *(prompt.regions if prompt is not None else []),
        *([Region(ANSWER, P, len(final))] if len(final) > P else []),
    ]
    first = steps[0].weights_LHQT
    both = bool(np.triu(first.mean((0, 1)), 1).any())
    data = measure(steps, final, P, named, matrices)
    given = Prompt("", final[:P].tolist()) if prompt is None else replace(prompt, ids=final[:P].tolist())
    special = () if tokenizer is None else tuple(tokenizer.all_special_ids)
    return make_trace(
        data,
        ModelFacts(model, tokenizer, ends_of(tokenizer), special),
        PromptBatch([given], torch.tensor([given.ids]).long(), None, [0]),
        sample_id=sample_id,
        family="transformers outputs",
        kind="mdm" if both else "arm",
        attention="bidirectional" if both else "causal",
        cached=int(any(step.weights_LHQT.shape[2] < len(step.tokens_T) for step in steps)),
        n_layers=first.shape[0],
        n_heads=first.shape[1],
        sampler="transformers" if generated else "",
    )


def ends_of(tokenizer: Any) -> tuple[int, ...]:
    """The ids of the end token, if the tokenizer has one."""
    found = getattr(tokenizer, "eos_token_id", None)
    return () if found is None else (int(found),)


def one_pass(
    attentions: Sequence[torch.Tensor], ids_T: torch.Tensor, row: int, mask_T: torch.Tensor | None
) -> StepWeights:
    """The weights of a pass over a whole sequence, without its padding."""
    weights = np.stack([layer[row].detach().float().cpu().numpy() for layer in attentions])
    if weights.shape[-1] != len(ids_T):
        raise FloatLensError(
            f"input_ids have {len(ids_T)} tokens, but the attention has {weights.shape[-1]} keys; pass the ids of this pass"
        )
    kept = np.arange(len(ids_T)) if mask_T is None else mask_T.nonzero()[:, 0].numpy()
    return StepWeights(ids_T.numpy()[kept], weights[:, :, kept][..., kept])


def generated_steps(outputs: Any, row: int, mask_P: torch.Tensor | None, ends: tuple[int, ...]) -> list[StepWeights]:
    """The passes of `generate` up to the one that writes the end token."""
    sequence = outputs.sequences[row].cpu().numpy()
    P = outputs.attentions[0][0].shape[2]
    pad = 0 if mask_P is None else int(mask_P.long().argmax())
    if mask_P is not None and not bool(mask_P[pad:].all()):
        raise FloatLensError("the prompt is padded on the right; generate with padding_side='left'")
    steps: list[StepWeights] = []
    for index, layers in enumerate(outputs.attentions):
        T = P + index
        first = (
            pad if layers[0].shape[2] == T else T - layers[0].shape[2]
        )  # without a cache, all rows are computed again
        rows = [keys_in_place(layer[row].detach().float().cpu().numpy(), T)[:, first - T :, pad:] for layer in layers]
        confidence = float("nan")
        if getattr(outputs, "logits", None) is not None:
            confidence = float(outputs.logits[index][row].float().softmax(-1)[int(sequence[T])])
        steps.append(StepWeights(sequence[pad:T], np.stack(rows), confidence))
        if int(sequence[T]) in ends:
            break
    return steps


def keys_in_place(weights_HQK: Array, length: int) -> Array:
    """Weights on all keys: drops unused keys of a static cache, and adds the keys that a sliding window left out."""
    K = weights_HQK.shape[-1]
    if length <= K:
        return weights_HQK[..., :length]
    return np.pad(weights_HQK, ((0, 0), (0, 0), (length - K, 0)))


def following(outputs: Any, row: int, steps: Sequence[StepWeights], mask_P: torch.Tensor | None) -> int:
    """The token that the last step appended."""
    pad = 0 if mask_P is None else int(mask_P.long().argmax())
    return int(outputs.sequences[row, pad + len(steps[-1].tokens_T)])


def measure(
    steps: Sequence[StepWeights], final_N: Array, P: int, regions: Sequence[Region], matrices: Sequence[str]
) -> xr.Dataset:
    """All statistics of the weights, as a Dataset."""
    L, H = steps[0].weights_LHQT.shape[:2]
    S, N = len(steps), len(final_N)
    names = [OTHER, *dict.fromkeys(region.name for region in regions)]
    region_N = np.zeros(N, int)
    for region in regions:
        region_N[region.start : region.end] = names.index(region.name)
    tokens = np.full((S, N), -1, np.int64)
    confidence = np.full((S, N), np.nan, np.float32)
    received = np.full((S, L, H, N), np.nan, np.float32)
    writing = np.full((S, L, N), np.nan, np.float32)
    entropy = np.full((S, L, H), np.nan, np.float32)
    flow = np.zeros((S, L, len(names), len(names)), np.float32)
    full = np.full((S, L, H, N, N), np.nan, np.float32) if matrices else None
    sums_LHN, entropies_LH, rows = np.zeros((L, H, N)), np.zeros((L, H)), 0
    pooled_LRR = np.zeros((L, len(names), len(names)))
    for index, step in enumerate(steps):
        T, Q = len(step.tokens_T), step.weights_LHQT.shape[2]
        if Q == T:  # all rows are computed again
            sums_LHN[:], entropies_LH[:], pooled_LRR[:], rows = 0, 0, 0, 0
        weights = step.weights_LHQT.astype(np.float64)
        sums_LHN[..., :T] += weights.sum(2)
        entropies_LH -= (weights * np.log(np.where(weights > 0, weights, 1))).sum((2, 3))
        one_hot_TR = np.eye(len(names))[region_N[:T]]
        pooled_LRR += np.einsum("qr,lqt,ts->lrs", one_hot_TR[T - Q :], weights.mean(1), one_hot_TR)
        rows += Q
        tokens[index, :T] = step.tokens_T
        received[index, ..., :T] = sums_LHN[..., :T] / rows
        entropy[index] = entropies_LH / rows
        total = pooled_LRR.sum(-1, keepdims=True)
        flow[index] = np.divide(pooled_LRR, total, out=np.zeros_like(pooled_LRR), where=total > 0)
        if N > P:
            confidence[index, T] = step.confidence
            writing[index, :, :T] = weights[:, :, -1].mean(1)
        if full is not None:
            full[index, :, :, T - Q : T, :T] = step.weights_LHQT
    data: dict[str, Any] = {
        "tokens": (("step", "position"), tokens),
        "committed_at": (("position",), np.where(np.arange(N) >= P, np.arange(N) - P, -1)),
        "final_tokens": (("position",), final_N.astype(np.int64)),
        "confidence": (("step", "position"), confidence),
        "received": (("step", "layer", "head", "position"), received),
        "entropy": (("step", "layer", "head"), entropy),
        "flow": (("step", "layer", "region", "region_to"), flow),
    }
    if N > P:
        data["received_writing"] = (("step", "layer", "position"), writing)
    if full is not None and "attention" in matrices:
        data["attention"] = (("step", "layer", "head", "query", "key"), full)
    if full is not None and "attention_mean" in matrices:
        data["attention_mean"] = (("step", "layer", "query", "key"), full.mean(2))
    coords = {"step": np.arange(S), "layer": np.arange(L), "head": np.arange(H), "position": np.arange(N)}
    return xr.Dataset(data, coords={**coords, "region": names, "region_to": names})
