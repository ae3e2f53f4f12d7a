"""Make a Trace from attention matrices that transformers returned (`output_attentions=True`), by a pass or `generate`.

No model is run: the session that observes a running model is shown the matrices instead. QK factors and value norms need
queries, keys and values, which these outputs do not have; `observe` records them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from floatlens.attention.call import Inputs
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Session
from floatlens.data.prompt import Prompt
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.trace.labels import ModelFacts, make_trace
from floatlens.trace.observe import Regions, prompts_of
from floatlens.trace.recorder import Recorder
from floatlens.trace.trace import Trace

STATISTICS = ("received", "received_writing", "entropy", "flow")
Pass = tuple[Step, list[torch.Tensor]]  # a step of one row without padding, and its weights (H, Q, T) by layer


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
    end = getattr(tokenizer, "eos_token_id", None)
    facts = ModelFacts(model, tokenizer, () if end is None else (int(end),), getattr(tokenizer, "all_special_ids", ()))
    passes = list(_generated(outputs, row, mask, facts) if generated else _one_pass(attentions, input_ids, row, mask))
    (first, weights), (last, _) = passes[0], passes[-1]
    prompt = next(iter(prompts_of(regions)), Prompt("", []))
    batch = PromptBatch([replace(prompt, ids=first.tokens_BT[0].tolist())], first.tokens_BT, None, [0])
    new_tokens = last.after_BT.shape[1] - first.tokens_BT.shape[1]
    layout = batch.layout(new_tokens, shifted=True)
    session = Session([*STATISTICS, *matrices], layout=layout)
    recorder = Recorder(
        batch,
        session.statistics,
        layout,
        new_tokens=new_tokens,
        steps=range(len(passes)),
        heads=None,
        shifted=True,
        special_ids=(),
    )
    for step, layers in passes:
        for layer, weights_HQT in enumerate(layers):
            session.see_rows(layer, *weights_as_attention(weights_HQT[None]))
        recorder.add(step, session.results)
        session.begin()
    both = bool(torch.stack([layer.mean(0).triu(1).any() for layer in weights]).any())
    return make_trace(
        recorder.dataset(0),
        facts,
        batch,
        sample_id=sample_id,
        family="transformers outputs",
        kind="mdm" if both else "arm",
        attention="bidirectional" if both else "causal",
        cached=int(any(layers[0].shape[1] < layers[0].shape[2] for _, layers in passes)),
        n_layers=len(weights),
        n_heads=weights[0].shape[0],
        sampler="transformers" if generated else "",
    )


def _one_pass(attentions: Sequence[torch.Tensor], ids: Any, row: int, mask_T: torch.Tensor | None) -> Iterator[Pass]:
    """The pass over a whole sequence, which writes nothing."""
    if ids is None:
        raise FloatLensError("the outputs of a forward pass do not hold their tokens; pass them as input_ids=")
    ids_T, T = torch.as_tensor(ids)[row].cpu(), attentions[0].shape[-1]
    if len(ids_T) != T:
        raise FloatLensError(
            f"input_ids have {len(ids_T)} tokens, but the attention has {T} keys; pass the ids of this pass"
        )
    kept = torch.arange(T) if mask_T is None else mask_T.nonzero()[:, 0]
    tokens_BT, nothing = ids_T[kept][None], torch.zeros(1, len(kept))
    step = Step(0, tokens_BT, tokens_BT, nothing.bool(), nothing * torch.nan)
    yield step, [layer[row].detach().float().cpu()[:, kept][..., kept] for layer in attentions]


def _generated(outputs: Any, row: int, mask_P: torch.Tensor | None, facts: ModelFacts) -> Iterator[Pass]:
    """The passes of `generate` up to the one that writes the end token."""
    sequence, P = outputs.sequences[row].cpu(), outputs.attentions[0][0].shape[2]
    pad = 0 if mask_P is None else int(mask_P.long().argmax())
    if mask_P is not None and not bool(mask_P[pad:].all()):
        raise FloatLensError("the prompt is padded on the right; generate with padding_side='left'")
    for index, layers in enumerate(outputs.attentions):
        T, Q = P + index, layers[0].shape[2]
        rows = slice(pad if Q == T else 0, None)  # without a cache, all rows are computed again, also those of padding
        weights = [_keys_in_place(layer[row].detach().float().cpu(), T)[:, rows, pad:] for layer in layers]
        confidence_BT = torch.full((1, T + 1 - pad), torch.nan)
        if getattr(outputs, "logits", None) is not None:
            confidence_BT[0, -1] = outputs.logits[index][row].float().softmax(-1)[int(sequence[T])]
        after_BT = sequence[None, pad : T + 1]
        yield Step(index, after_BT[:, :-1], after_BT, torch.arange(pad, T + 1)[None] == T, confidence_BT), weights
        if int(sequence[T]) in facts.end_ids:
            return


def weights_as_attention(weights_BHQT: torch.Tensor) -> tuple[Callable[[int, int], torch.Tensor], Inputs]:
    """Weights as `Session.see_rows` takes them; the vectors that they were made of are not known."""
    (B, H, Q, T), nothing = weights_BHQT.shape, weights_BHQT.new_full((), torch.nan)
    vectors = nothing.expand(B, H, T, 1)
    return lambda start, end: weights_BHQT[:, :, start:end], Inputs(
        vectors[:, :, T - Q :], vectors, vectors, 1.0, None, False
    )


def _keys_in_place(weights_HQK: torch.Tensor, length: int) -> torch.Tensor:
    """Weights on all keys: drops unused keys of a static cache, and adds the keys that a sliding window left out."""
    missing = max(0, length - weights_HQK.shape[-1])
    return torch.nn.functional.pad(weights_HQK[..., :length], (missing, 0))
