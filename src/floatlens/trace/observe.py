"""Observe a model in the user's own loop: `with observe(model) as watch: model.generate(...)`, then `watch.trace()`.

Every forward pass inside the block is a step. Models of transformers are observed through their attention interface, other
torch models through the torch functions that they call; see `attention/hook.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from transformers import PreTrainedModel

from floatlens.attention.call import CROSS, ENCODER
from floatlens.attention.hook import observing, passes_interface, shared
from floatlens.attention.session import Implementation, Session
from floatlens.attention.statistic import DEFAULT, expand
from floatlens.data.prompt import Prompt, Region
from floatlens.errors import FloatLensError
from floatlens.models.describe import attention_layers, shape
from floatlens.models.family import FAMILIES, Family
from floatlens.models.tokenizer import find_mask_id
from floatlens.trace.generation import end_tokens
from floatlens.trace.observation import Observation
from floatlens.trace.recorder import ModelFacts, check_observed, check_range

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from floatlens.lens import Lens

CROSS_STATISTICS = ("received", "entropy")
NEED_TOKENS = ("received_final", "received_writing", "flow", "evidence", "query_mass")
CROSS_NAMES = re.compile(
    r"(^|\.)(encoder_attn|EncDecAttention|encoder_decoder_attention|cross_?attn|cross_?attention|multihead_attn)(\.|$)"
)
Regions = Prompt | Mapping[str, tuple[int, int]] | Sequence[Region | tuple[str, int, int]]


@contextmanager
def observe(
    model: torch.nn.Module | Lens,
    record: Sequence[str] | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    regions: Regions | Sequence[Regions] | None = None,
    family: str | Family | None = None,
    mask_id: int | None = None,
    prompt_length: int | None = None,
    tokens: str | None = None,
    matrices: Sequence[str] = (),
    layers: Collection[int] | None = None,
    matrix_layers: Collection[int] | None = None,
    rows: int | None = None,
    implementation: Implementation = "fused",
) -> Iterator[Observation]:
    """Observe a model while you run it; each forward pass inside the block is a step.

    Parameters
    ----------
    model
        Any torch model, or a `Lens`, whose model, tokenizer, family and mask token are then used. The passes of `model`
        itself are the steps. A compiled model runs uncompiled inside the block.
    record
        Names of statistics; by default all that need no full matrices, and for a pass without token ids those that need
        no tokens either.
    tokenizer
        The tokenizer, for token strings, the mask token and the end tokens of the trace.
    regions
        Named spans of the prompt, counted from its first token that is not padding: a `Prompt`, `{"doc1": (4, 20)}`, or a
        list of `(name, start, end)`; pass a list of these to give each row its own. A `Prompt` also has the gold evidence.
    family
        Name of the model's family, which determines whether row j or j - 1 writes position j (as in "dream"). By default,
        a model that receives mask tokens writes each one from its own row, and any other model appends tokens.
    mask_id
        The mask token; by default that of the model's config or of the tokenizer.
    prompt_length
        Length of the prompt, including padding; by default up to the first mask, or the first pass of an autoregressive
        model. Set it if a prompt is read in several passes.
    tokens
        Name of the argument of `forward` that holds the token ids (batch, length); by default `input_ids`, or the only one
        that has whole numbers of this shape and is not a mask.
    matrices, layers, matrix_layers, implementation
        As in `Lens.watch`.
    rows
        Observe only the first `rows` rows of the batch, for example when guidance adds a second copy of it.

    >>> attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.ones(1, 4, 8)
    >>> with observe(attention, ["received"]) as watch:
    ...     _ = attention(x, x, x)
    >>> watch.results["received"][0].shape
    torch.Size([1, 2, 4])
    """
    prompts = prompts_of(regions)
    lens: Any = model if hasattr(model, "checkpoint") else None
    if lens is not None:
        model, tokenizer, family = lens.model, tokenizer or lens.tokenizer, family or lens.family
        mask_id = lens.mask_id if mask_id is None and lens.has_mask else mask_id
    if isinstance(family, str):
        family = FAMILIES[family]
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    assert isinstance(model, torch.nn.Module)
    if model in _observed:
        raise FloatLensError(f"this {type(model).__name__} is already observed; use one block with all statistics")
    config = getattr(model, "config", None)
    if mask_id is None and (config is not None or tokenizer is not None):
        mask_id = find_mask_id(config, tokenizer)
    if family is not None and family.kind == "mdm" and family.mask_token and mask_id is None:
        raise FloatLensError(f"family {family.name!r} replaces mask tokens; pass the mask token as mask_id=")
    encoder, decoder = encoder_and_decoder(model)
    count = shape(config)["layers"] if config is not None and encoder is None else None
    for chosen in (layers, matrix_layers):
        check_range(chosen, count, "layer")
    names = [*expand(DEFAULT if record is None else record), *matrices]
    # An arbitrary model may overwrite its queries and keys after the call, so calls are processed immediately.
    options: dict[str, Any] = {"implementation": implementation, "rows": rows}
    options |= {} if hasattr(model, "get_input_embeddings") and passes_interface(model) else {"room": 0}
    facts = facts_of(model, tokenizer, mask_id) if lens is None else lens

    def passes_of(module: torch.nn.Module, **about: Any) -> Observation:
        session = Session(names, layers=layers, matrix_layers=matrix_layers, **options)
        return Observation(module, session, Session(CROSS_STATISTICS, cross_attention=True, **options), facts, **about)

    about = {"prompts": prompts, "family": family, "mask_id": mask_id, "prompt_length": prompt_length, "tokens": tokens}
    watch = passes_of(decoder or model, **about)
    watch.needs_tokens = NEED_TOKENS if record is None else ()
    watch.own_cache = not isinstance(model, PreTrainedModel) and not passes_interface(model)
    others = {CROSS: watch.cross_session}
    if encoder is not None:
        watch.of_encoder = passes_of(encoder)
        others[ENCODER] = watch.of_encoder.session
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        _observed.add(model)
        stack.callback(_observed.discard, model)
        stack.enter_context(observing(model, watch.session, others=others, parts=parts_of(model, encoder)))
        stack.enter_context(shared())
        stack.enter_context(_hooked(watch, model, model))
        if watch.of_encoder is not None:
            stack.enter_context(_hooked(watch.of_encoder, watch.of_encoder.module, model))
        if hasattr(model, "generate"):
            stack.enter_context(_listening(model, watch, encoder is not None))
        yield watch
    if watch.steps and not any(session.observed for session in (watch.session, *others.values())):
        raise FloatLensError(
            f"no attention was observed in {len(watch.steps)} forward passes of {type(model).__name__}: it calls neither "
            f"scaled_dot_product_attention nor a softmax between two matrix products"
        )


_observed: WeakSet[torch.nn.Module] = WeakSet()


@contextmanager
def _hooked(watch: Observation, end: torch.nn.Module, model: torch.nn.Module) -> Iterator[None]:
    """Show every pass to `watch`: it begins in the module of `watch` and ends in `end`."""
    expected = attention_layers(model.config) if hasattr(model, "config") and end is model else []

    def begin(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watch._begin(args, kwargs)

    def finish(_: Any, __: Any, ___: Any, output: Any) -> None:
        watch._end(output)
        if output is not None and expected:
            check_observed(model, watch.session.unobserved(expected))

    hooks = [
        watch.module.register_forward_pre_hook(begin, with_kwargs=True),
        end.register_forward_hook(finish, with_kwargs=True, always_call=True),
    ]
    try:
        yield
    finally:
        watch._close()
        for hook in hooks:
            hook.remove()


@contextmanager
def _listening(model: Any, watch: Observation, has_encoder: bool) -> Iterator[None]:
    """Wrap `model.generate` to get the length of the prompt and the written tokens."""
    generate = model.generate
    wanted = watch.prompt_length

    def observed(*args: Any, **kwargs: Any) -> Any:
        watch.fresh = True
        inputs = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        if not has_encoder and isinstance(inputs, torch.Tensor) and inputs.ndim == 2:
            watch.prompt_length = inputs.shape[1] if wanted is None else wanted
            watch.prompt_mask = prompt_mask(model, inputs, kwargs)
        try:
            made = generate(*args, **kwargs)
        finally:
            watch.prompt_length, watch.prompt_mask = wanted, None
        final = made if isinstance(made, torch.Tensor) else made.sequences
        beams = kwargs.get("num_beams") or getattr(kwargs.get("generation_config"), "num_beams", None)
        beams = beams or getattr(getattr(model, "generation_config", None), "num_beams", None) or 1
        if beams > 1:
            watch.problems[watch.generation] = f"beam search with {beams} beams moves rows between the steps"
        elif watch.tokens_BT is not None and final.shape[0] == watch.tokens_BT.shape[0]:
            watch._finish(final)
        watch.fresh = True
        return made

    model.__dict__["generate"] = observed
    try:
        yield
    finally:
        del model.__dict__["generate"]


def prompt_mask(model: Any, ids_BP: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor | None:
    """The mask (B, P) of a prompt that `generate` was called with, or else finds out; with a static cache no pass has it."""
    mask = options.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.shape == ids_BP.shape:
        return mask
    config = options.get("generation_config") or getattr(model, "generation_config", None)
    pad, end = (options.get(name, getattr(config, name, None)) for name in ("pad_token_id", "eos_token_id"))
    known = mask is None and pad is not None and pad not in (end if isinstance(end, list | tuple) else [end])
    return ids_BP != pad if known else None


def encoder_and_decoder(model: torch.nn.Module) -> tuple[torch.nn.Module | None, torch.nn.Module | None]:
    """The encoder and decoder of an encoder-decoder model; None for other models."""
    if isinstance(model, torch.nn.Transformer):
        return model.encoder, model.decoder
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None, None
    parts: Any = model
    encoder, decoder = parts.get_encoder(), parts.get_decoder()
    if encoder is model or decoder is model:
        raise FloatLensError(f"{type(model).__name__} does not define which module is its encoder or its decoder")
    return encoder, decoder


def parts_of(model: torch.nn.Module, encoder: torch.nn.Module | None) -> dict[int, str]:
    """The part of each module that belongs to an encoder or to cross-attention, by module id."""
    parts = {id(module): CROSS for name, module in model.named_modules() if CROSS_NAMES.search(name)}
    if encoder is not None:
        parts |= {id(module): ENCODER for module in encoder.modules()}
    return parts


def prompts_of(regions: Regions | Sequence[Regions] | None) -> list[Prompt]:
    """Prompts with the given regions: one for all rows, or one per row.

    >>> [prompt.regions for prompt in prompts_of({"doc1": (0, 4)})]
    [[Region(name='doc1', start=0, end=4)]]
    """
    if regions is None:
        return []
    if isinstance(regions, Prompt):
        return [regions]
    if isinstance(regions, Mapping):
        return [Prompt("", [], [Region(name, start, end) for name, (start, end) in regions.items()])]
    given = list(regions)
    if all(isinstance(one, Region) or (isinstance(one, tuple) and one and isinstance(one[0], str)) for one in given):
        parts = [one if isinstance(one, Region) else Region(*one) for one in given]  # type: ignore[misc]
        return [Prompt("", [], parts)]
    return [prompt for one in given for prompt in prompts_of(one)]  # type: ignore[arg-type]


def facts_of(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None, mask_id: int | None) -> ModelFacts:
    """The facts about a model that are stored in a trace."""
    config, generation = getattr(model, "config", None), getattr(model, "generation_config", None)
    ends = end_tokens(generation) if generation is not None else end_tokens(config, tokenizer)
    pad_id: Any = getattr(config, "pad_token_id", None)
    special: set[Any] = {*ends, mask_id, pad_id, *getattr(tokenizer, "all_special_ids", ())} - {None}
    name = getattr(config, "name_or_path", "") or getattr(config, "_name_or_path", "") or type(model).__name__
    return ModelFacts(name, tokenizer, ends, sorted(special), config)
