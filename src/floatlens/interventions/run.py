"""Active interventions: entered with `lens.intervene`, applied step by step, undone when the block ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from floatlens.attention.attention import changing, configs_of
from floatlens.attention.inputs import Inputs
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.decode.network import ForwardPass, current_pass
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.interventions.attention_call import AttentionCall
from floatlens.interventions.check import check
from floatlens.interventions.decoding_state import DecodingState
from floatlens.interventions.intervention import Intervention
from floatlens.interventions.live_anchors import UnchangedReceived
from floatlens.interventions.registry import parse_intervention
from floatlens.models.describe import attention_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    asked = [parse_intervention(one) for one in given]
    outer = in_force(lens)
    check([*(getattr(one, "asked", one) for one in outer), *asked], lens.shape, lens.config)
    ready = tuple(one.prepared(lens, reference) for one in asked)
    with _holding(lens, (*outer, *ready)):
        yield


@contextmanager
def without(lens: Lens) -> Iterator[None]:
    """Suspend all interventions inside the block."""
    with _holding(lens, ()):
        yield


@contextmanager
def _holding(lens: Lens, interventions: tuple[Intervention, ...]) -> Iterator[None]:
    token = _in_force.set({**_in_force.get(), id(lens): interventions})
    try:
        yield
    finally:
        _in_force.reset(token)


def stepwise(
    lens: Lens, steps: Iterator[Step], interventions: Sequence[Intervention], batch: PromptBatch, new_tokens: int
) -> Iterator[Step]:
    """The steps of a sampler under interventions. Raises an error before the first step if the prompts do not fit."""
    change = Change(lens, interventions, batch, new_tokens)
    return _changed(lens, steps, change)


def _changed(lens: Lens, steps: Iterator[Step], change: Change) -> Iterator[Step]:
    configs = configs_of(lens.model)
    at, tokens_BT = 0, change.state.tokens_BT
    while True:
        change.begin(at, tokens_BT)
        # Only while a forward pass runs: between two steps the model is unchanged.
        with changing(lens.model, change, configs):
            step = next(steps, None)
        if step is None:
            change.check_acted(lens.model)
            return
        change.check_called(lens.model)
        at, tokens_BT = step.index + 1, step.after_BT
        yield step


class Change:
    """The change that the attention function calls: applies each intervention of the layer and computes the result."""

    def __init__(self, lens: Lens, interventions: Sequence[Intervention], batch: PromptBatch, new_tokens: int) -> None:
        self.state = DecodingState(batch, new_tokens, lens.family, pieces(lens), start_tokens(lens, batch, new_tokens))
        self.by_layer: dict[int, list[Intervention]] = {}
        for one in interventions:
            one.begin(self.state)
            for layer in one.layer_numbers(lens.shape):
                self.by_layer.setdefault(layer, []).append(one)
        self.received = UnchangedReceived(self.state)
        self.forward: ForwardPass | None = None
        self.called: set[int] = set()
        with_attention = set(attention_layers(lens.config))
        self.expected = set(self.by_layer) & with_attention
        self.interventions, self.acted = interventions, set[int]()
        for one in interventions:
            if not with_attention.intersection(layers := one.layer_numbers(lens.shape)):
                raise FloatLensError(
                    f"{one} would change nothing: none of the layers {', '.join(map(str, layers))} of {lens.name} computes "
                    f"attention; choose from {', '.join(map(str, sorted(with_attention)))}"
                )

    def check_called(self, model: PreTrainedModel) -> None:
        """Raise an error if a layer that should be changed was not called: the interventions would silently do nothing."""
        if missing := sorted(self.expected - self.called):
            named = ", ".join(str(one) for one in dict.fromkeys(one for n in missing for one in self.by_layer[n]))
            raise FloatLensError(
                f"{named} changed nothing in layer {missing[0]} of {type(model).__name__}: its attention does not use "
                f"transformers' attention interface, so it cannot be traced or changed"
            )

    def check_acted(self, model: PreTrainedModel) -> None:
        """Raise an error for a run in which an intervention never received an attention call."""
        for one in self.interventions:
            if id(one) not in self.acted:
                raise FloatLensError(
                    f"{one} changed nothing: no attention of {type(model).__name__} was computed in its layers"
                )

    def begin(self, step: int, tokens_BT: torch.Tensor) -> None:
        """Prepare for a new step with these tokens."""
        self.state.step, self.state.tokens_BT = step, tokens_BT
        self.received.begin()
        self.forward = None

    def __call__(self, layer: int, inputs: Inputs, base: Callable[[], Any]) -> tuple[Any, Inputs]:
        self.called.add(layer)
        if layer not in self.by_layer:
            return base(), inputs
        forward = current_pass()
        if forward is not None and forward is not self.forward:  # a step may take several passes
            self.forward, self.state.tokens_BT = forward, forward.tokens_BT[: self.state.B]
            self.received.begin()
        attention = AttentionCall(layer, inputs, self.state, self.received)
        for one in self.by_layer[layer]:
            one.change(attention)
            self.acted.add(id(one))
        output, used = attention.run(base)
        # Each layer has different masks at each step, so no two may be processed together.
        return output, replace(used, kind=(used.kind, layer))


def start_tokens(lens: Lens, batch: PromptBatch, new_tokens: int) -> torch.Tensor:
    """The tokens of the first step: the prompts, and for masked diffusion the masks or the tail after them."""
    if not lens.has_mask:
        return batch.ids_BP
    tail_BN = batch.tail_BN()
    if tail_BN is None:
        tail_BN = batch.ids_BP.new_full((len(batch.prompts), new_tokens), lens.mask_id)
    return torch.cat([batch.ids_BP, tail_BN], 1)


def pieces(lens: Lens) -> Callable[[Sequence[int]], list[str]]:
    """Token ids as the tokenizer's pieces."""

    def strings(ids: Sequence[int]) -> list[str]:
        found = lens.token_strings(list(dict.fromkeys(ids)))
        return [found[str(i)] for i in ids]

    return strings
