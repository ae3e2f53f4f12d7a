"""Active interventions: `Lens.intervene` enters them, `Lens.steps` applies them, the end of the block undoes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from floatlens.attention.call import Inputs
from floatlens.attention.hook import changing
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.decode.network import current_pass
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.interventions.attention_call import AttentionCall, DecodingState
from floatlens.interventions.intervention import Intervention, check, parse_intervention
from floatlens.models.describe import attention_layers

if TYPE_CHECKING:
    from floatlens.lens import Lens, PromptLike

# The active interventions by lens; every context (thread, task) has its own.
_in_force: ContextVar[dict[int, tuple[Intervention, ...]]] = ContextVar("floatlens_interventions", default={})  # noqa: B039


def in_force(lens: Lens) -> tuple[Intervention, ...]:
    """The active interventions of a lens, outer blocks first."""
    return _in_force.get().get(id(lens), ())


@contextmanager
def intervene(
    lens: Lens, given: Sequence[Intervention | str], reference: Sequence[PromptLike] | None
) -> Iterator[None]:
    """Add interventions to the active ones inside the block; see `Lens.intervene`."""
    asked, outer = [parse_intervention(one) for one in given], in_force(lens)
    check([*outer, *asked], lens.shape, lens.config)
    with holding(lens, (*outer, *(one.prepared(lens, reference) for one in asked))):
        yield


@contextmanager
def holding(lens: Lens, interventions: tuple[Intervention, ...] = ()) -> Iterator[None]:
    """Let exactly these interventions act inside the block; none by default."""
    token = _in_force.set({**_in_force.get(), id(lens): interventions})
    try:
        yield
    finally:
        _in_force.reset(token)


def stepwise(
    lens: Lens, steps: Iterator[Step], interventions: Sequence[Intervention], batch: PromptBatch, new_tokens: int
) -> Iterator[Step]:
    """The steps of a sampler under interventions. Raises an error before the first step if the prompts do not fit."""
    acting = prepare(lens, interventions, batch, new_tokens)

    def changed() -> Iterator[Step]:
        index, tokens_BT = 0, first_tokens(lens, batch, new_tokens)
        while True:
            # Only while a forward pass runs: between two steps the model is unchanged.
            with acting(index, tokens_BT):
                step = next(steps, None)
            if step is None:
                return
            index, tokens_BT = step.index + 1, step.after_BT
            yield step

    return changed()


def prepare(
    lens: Lens, interventions: Sequence[Intervention], batch: PromptBatch, new_tokens: int
) -> Callable[[int, torch.Tensor], AbstractContextManager[None]]:
    """Begin the run of a batch; return the block in which interventions act on the step of a number and its tokens (B, T).

    Without interventions, nothing happens in the block. A layer that should be changed and was never called is an error:
    the interventions would silently do nothing.
    """
    if not interventions:
        return lambda step, tokens_BT: nullcontext()

    def strings(ids: Sequence[int]) -> list[str]:
        pieces = lens.token_strings(list(dict.fromkeys(ids)))
        return [pieces[str(i)] for i in ids]

    state = DecodingState(batch, new_tokens, lens.family, strings, first_tokens(lens, batch, new_tokens))
    by_layer: dict[int, list[Intervention]] = {}
    with_attention, called = set(attention_layers(lens.config)), set[int]()
    for one in interventions:
        one.begin(state)
        layers = one.layer_numbers(lens.shape)
        for layer in layers:
            by_layer.setdefault(layer, []).append(one)
        if not with_attention.intersection(layers):
            raise FloatLensError(
                f"{one} would change nothing: none of the layers {', '.join(map(str, layers))} of {lens.name} computes "
                f"attention; choose from {', '.join(map(str, sorted(with_attention)))}"
            )

    def change(layer: int, inputs: Inputs, base: Callable[[], Any]) -> tuple[Any, Inputs]:
        called.add(layer)
        if layer not in by_layer:
            return base(), inputs
        forward = current_pass()
        if forward is not None and forward is not state.forward:  # a step may take several passes
            state.begin_pass(forward.tokens_BT[: state.B], forward)
        attention = AttentionCall(layer, inputs, state)
        for one in by_layer[layer]:
            one.change(attention)
        return attention.run(base)

    @contextmanager
    def acting(step: int, tokens_BT: torch.Tensor) -> Iterator[None]:
        state.step = step
        state.begin_pass(tokens_BT)
        with changing(lens.model, change):
            yield
        if missing := sorted(set(by_layer) & with_attention - called):
            named = ", ".join(str(one) for one in dict.fromkeys(one for n in missing for one in by_layer[n]))
            raise FloatLensError(
                f"{named} changed nothing in layer {missing[0]} of {type(lens.model).__name__}: its attention does not "
                f"use transformers' attention interface, so it cannot be traced or changed"
            )

    return acting


def first_tokens(lens: Lens, batch: PromptBatch, new_tokens: int) -> torch.Tensor:
    """The tokens of the first step: the prompts, and the masks of a model that fills them (B, T)."""
    if not lens.has_mask:
        return batch.ids_BP
    tail_BN = batch.tail_BN()
    masks_BN = batch.ids_BP.new_full((len(batch.prompts), new_tokens), lens.mask_id) if tail_BN is None else tail_BN
    return torch.cat([batch.ids_BP, masks_BN], 1)
