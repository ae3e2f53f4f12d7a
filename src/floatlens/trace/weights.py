"""Make a Trace from attention matrices that were computed elsewhere, such as those that transformers returns.

No model is run: the session that observes a running model is shown the matrices instead. QK factors and value norms need
queries, keys and values, which the outputs of transformers do not have; `observe` records them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from floatlens.attention.call import Inputs
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Session
from floatlens.data.prompt import Prompt
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.trace.generation import end_tokens
from floatlens.trace.observe import Regions, prompts_of
from floatlens.trace.recorder import ModelFacts, Recorder
from floatlens.trace.trace import Trace

STATISTICS = ("received", "received_writing", "entropy", "flow")
Pass = tuple[Step, dict[int, torch.Tensor]]  # a step of one row without padding, and its weights (H, Q, T) by layer


def trace_of_weights(
    passes: Sequence[Pass],
    statistics: Sequence[str],
    facts: ModelFacts,
    prompt: Prompt,
    *,
    shifted: bool = True,
    vectors: Mapping[int, tuple[torch.Tensor, torch.Tensor]] | None = None,
    coords: Mapping[str, Sequence[int]] | None = None,
    **attributes: Any,
) -> Trace:
    """The trace of passes whose weights are known; `vectors` are the queries (H, T, D) and keys (K, T, D) of each layer."""
    batch = PromptBatch([prompt], torch.tensor([prompt.ids]).long(), None, [0])
    new = passes[-1][0].after_BT.shape[1] - len(prompt.ids)
    recorder = Recorder(batch, new, steps=range(len(passes)), shifted=shifted)
    session = Session(statistics, layout=recorder.layout)
    for step, layers in passes:
        for layer, weights_HQT in layers.items():
            (H, Q, T), nothing = weights_HQT.shape, weights_HQT.new_full((), torch.nan)
            q_HTD, k_KTD = (vectors or {}).get(layer, (nothing.expand(H, T, 1), nothing.expand(H, T, 1)))
            rows = partial(lambda weights, start, end: weights[None, :, start:end], weights_HQT)
            q, k = q_HTD[None, :, T - Q :], k_KTD[None]
            session.see(layer, Inputs(q, k, k, 1.0, None, False, own_rows=rows))
        recorder.add(step, session.results)
        session.begin()
    trace = recorder.trace(0, facts, **attributes)
    trace.data = trace.data.assign_coords(coords or {})
    return trace


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
    """Make a trace from attention matrices that a transformers model returned; no model is run.

    It has received attention, the attention of writing rows, entropy and flow. QK factors and value norms cannot be
    computed from these outputs; `observe` records them, and needs no matrices.

    Parameters
    ----------
    outputs
        Output of a forward pass with `output_attentions=True`, or of `generate` with `return_dict_in_generate=True` as
        well; `output_logits=True` adds the confidence of the tokens.
    input_ids
        Token ids (batch, length) of a forward pass; not needed for the outputs of `generate`.
    tokenizer
        Tokenizer, for token strings and the end token.
    attention_mask
        The attention mask of the call (batch, length), if the batch is padded.
    regions
        Named spans of the prompt, as in `observe`.
    row
        Row of the batch.
    matrices
        Matrices to keep in the trace: "attention", "attention_mean"; none by default.
    model, sample_id
        Names that are stored in the trace.
    """
    if unknown := [name for name in matrices if name not in ("attention", "attention_mean")]:
        raise FloatLensError(f"matrices {unknown[0]!r} cannot be computed from attention; use 'attention'")
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
    facts = ModelFacts(model, tokenizer, end_tokens(tokenizer), getattr(tokenizer, "all_special_ids", ()))
    passes = list(_generated(outputs, row, mask, facts) if generated else _one_pass(attentions, input_ids, row, mask))
    first, weights = passes[0]
    prompt = next(iter(prompts_of(regions)), Prompt("", []))
    both = bool(torch.stack([layer.mean(0).triu(1).any() for layer in weights.values()]).any())
    return trace_of_weights(
        passes,
        [*STATISTICS, *matrices],
        facts,
        replace(prompt, ids=first.tokens_BT[0].tolist()),
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
        raise FloatLensError(f"input_ids have {len(ids_T)} tokens, but the attention has {T} keys")
    kept = torch.arange(T) if mask_T is None else mask_T.nonzero()[:, 0]
    tokens_BT, nothing = ids_T[kept][None], torch.zeros(1, len(kept))
    step = Step(0, tokens_BT, tokens_BT, nothing.bool(), nothing * torch.nan)
    yield step, {n: one[row].detach().float().cpu()[:, kept][..., kept] for n, one in enumerate(attentions)}


def _generated(outputs: Any, row: int, mask_P: torch.Tensor | None, facts: ModelFacts) -> Iterator[Pass]:
    """The passes of `generate` up to the one that writes the end token."""
    sequence, P = outputs.sequences[row].cpu(), outputs.attentions[0][0].shape[2]
    pad = 0 if mask_P is None else int(mask_P.long().argmax())
    if mask_P is not None and not bool(mask_P[pad:].all()):
        raise FloatLensError("the prompt is padded on the right; generate with padding_side='left'")
    for index, layers in enumerate(outputs.attentions):
        T, Q = P + index, layers[0].shape[2]
        rows = slice(pad if Q == T else 0, None)  # without a cache, all rows are computed again, also those of padding
        heads = {}
        for n, layer in enumerate(layers):
            weights_HQK = layer[row].detach().float().cpu()[..., :T]  # without unused keys of a static cache
            left_out = T - weights_HQK.shape[-1]  # keys before a sliding window
            heads[n] = torch.nn.functional.pad(weights_HQK, (left_out, 0))[:, rows, pad:]
        confidence_BT = torch.full((1, T + 1 - pad), torch.nan)
        if getattr(outputs, "logits", None) is not None:
            confidence_BT[0, -1] = outputs.logits[index][row].float().softmax(-1)[int(sequence[T])]
        after_BT = sequence[None, pad : T + 1]
        yield Step(index, after_BT[:, :-1], after_BT, torch.arange(pad, T + 1)[None] == T, confidence_BT), heads
        if int(sequence[T]) in facts.end_ids:
            return
