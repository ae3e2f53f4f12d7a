"""The hook into transformers: an attention function and a mask function that it calls by name.

The output comes from the model's original implementation (SDPA, flash, eager): the registered function calls it with the
same arguments and then passes queries, keys and values to the active session. Both functions must be registered: without
the mask function, transformers passes no padding mask and does not warn. An `AttentionChange` may compute the output in
another way (interventions/); the session then receives the inputs that were actually used. A model that does not use the
attention interface is observed through the torch functions that it calls (`function_mode`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from floatlens.attention.call import Inputs
from floatlens.attention.function_mode import FunctionMode, is_of_sequence
from floatlens.attention.hidden import hidden_observed
from floatlens.attention.session import Session
from floatlens.attention.state_space import is_mixer, mixers_observed
from floatlens.decode.network import ForwardPass, current_pass
from floatlens.errors import FloatLensError
from floatlens.models.describe import attention_layers

NAME = "floatlens"
FUNCTIONS_ONLY = ("git",)  # model types in which only the vision tower uses the attention interface
FLASH = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
)


# A change of attention while it is computed: (layer, inputs, base) -> the output that replaces `base()`, and the inputs that
# were used. A change that calls `base()` returns the inputs unchanged.
AttentionChange = Callable[[int, Inputs, Callable[[], Any]], tuple[Any, Inputs]]


@dataclass
class Active:
    """The sessions and changes that are active while a model runs.

    base      the model's original implementation
    session   observes the self-attention of the sequence that is being written
    others    sessions that observe other parts of the model, by part name: an encoder, cross-attention
    parts     the part that a module belongs to, by the module's id; none: the self-attention of the sequence
    """

    base: str
    model: Any
    session: Session | None = None
    change: AttentionChange | None = None
    others: Mapping[str, Session] = field(default_factory=dict)
    parts: Mapping[int, str] = field(default_factory=dict)
    calls: int = 0
    forward: ForwardPass | None = None
    mode: FunctionMode | None = None

    def number(self, module: torch.nn.Module | None) -> int:
        """The layer of a called module: its own number, or otherwise the number of modules called before it in this pass."""
        forward, counter = current_pass(), self if self.session is None else self.session
        if forward is not self.forward:
            self.forward, counter.calls = forward, 0
            if self.mode is not None:
                self.mode.begin()
        counter.calls += 1
        if (own := layer_number(module)) is not None:
            return own
        layers = attention_layers(self.model.config) if hasattr(self.model, "config") else []
        return layers[counter.calls - 1] if counter.calls <= len(layers) else counter.calls - 1


def layer_number(module: torch.nn.Module | None) -> int | None:
    """The layer number stored in a module; None if it has none, or -1 as in a module that several layers share."""
    own = getattr(module, "layer_idx", None)
    return None if own is None or int(own) < 0 else int(own)


_active: ContextVar[Active | None] = ContextVar("floatlens_active", default=None)
# Made visible to other threads by `shared`: with transformers' streamers, `generate` runs in a separate thread.
_shared: list[Active] = []


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute attention as the model would, or as a change does, then pass the inputs to the session."""
    active = _current()
    base, change, session = active.base, active.change, active.session
    caught: list[torch.Tensor] = []
    listens = change is None and session is not None and session.implementation == "kernel" and query.shape[2] > 1

    def unchanged() -> Any:
        with Logsumexp(caught) if listens else nullcontext():
            return base_function(module, base)(module, query, key, value, attention_mask, *args, **kwargs)

    inputs = inputs_of(module, base, query, key, value, attention_mask, kwargs)
    # Only SDPA can be replaced: other implementations, dropout and tensor parallel processes are not known here.
    split = torch.distributed.is_available() and torch.distributed.is_initialized()
    fuses = base == "sdpa" and change is None and not kwargs.get("dropout") and not split
    return compute(active, inputs, unchanged, active.parts.get(id(module)), module=module, caught=caught, fuses=fuses)


def compute(
    active: Active,
    inputs: Inputs,
    unchanged: Callable[[], Any],
    part: str | None,
    finish: Callable[[Inputs], Inputs] = lambda inputs: inputs,
    *,
    module: torch.nn.Module | None = None,
    caught: Sequence[torch.Tensor] = (),
    fuses: bool = False,
) -> Any:
    """The output of a call, computed by `unchanged` or by a change; the session receives the inputs that were used.

    `finish` converts the inputs that a change worked on into those that the session receives. `fuses`: the session may
    compute the output instead of `unchanged`, and returns it in the layout of transformers' attention functions.
    """
    if part is not None:
        output, session = unchanged(), active.others.get(part)
        if session is not None:
            session.calls += 1
            own = layer_number(module)
            session.see(session.calls - 1 if own is None else own, finish(inputs))
        return output
    session, layer = active.session, active.number(module)
    if session is not None and session.repeats(layer, inputs.q_BHQD):
        session = None
    if fuses and session is not None and session.computes(layer, inputs):
        return session.see(layer, inputs, compute=True), None
    if active.change is None:
        output, used = unchanged(), inputs
    else:
        output, used = active.change(layer, inputs, unchanged)
        used = replace(used, kind=layer)  # a change may give each layer a different mask at any step
    if session is not None:
        seen = gather_heads(finish(used), module)
        if len(caught) == 1 and caught[0].shape == seen.q_BHQD.shape[:3]:
            seen = replace(seen, lse_BHQ=caught[0])
        session.see(layer, seen)
    return output


def inputs_of(
    module: torch.nn.Module,
    base: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    kwargs: dict[str, Any],
) -> Inputs:
    """The inputs of an implementation, with the flags that it turns into masks converted to explicit masks."""
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise FloatLensError(
            f"attention implementation {base!r} cannot be observed; load with attn_implementation='sdpa'"
        )
    causal, Q = kwargs.get("is_causal"), query.shape[2]
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal) and Q > 1
    if mask is not None and mask.ndim == 2:  # flash attention: padding of the keys; causality and window are flags
        mask = mask[:, None, None, :].bool()
    else:
        causal = causal and mask is None and base != "eager"
    window = kwargs.get("sliding_window")
    if window and base.startswith("flash"):
        T, device = key.shape[2], query.device
        q, k = torch.arange(T - Q, T, device=device)[:, None], torch.arange(T, device=device)[None]
        near_11QT = ((k <= q) & (k > q - int(window)))[None, None]
        mask, causal = near_11QT if mask is None else near_11QT & mask, False
    if causal and key.shape[2] > Q:  # an empty static cache: later keys are not written yet
        key, value = key[:, :, :Q], value[:, :, :Q]
    options = {"softcap": kwargs.get("softcap"), "bias": kwargs.get("position_bias"), "sinks_H": kwargs.get("s_aux")}
    return Inputs(query, key, value, kwargs.get("scaling"), mask, causal, **options, kind=window)


def gather_heads(inputs: Inputs, module: torch.nn.Module | None) -> Inputs:
    """The inputs with all heads, gathered in order from the processes of a tensor parallel plan."""
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    if heads in (None, inputs.H) or not torch.distributed.is_initialized():
        return inputs
    count = torch.distributed.get_world_size()
    if inputs.H * count != heads or inputs.bias is not None:
        raise FloatLensError(f"{type(module).__name__} cannot be observed while it is split over {count} processes")

    def gathered(part: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(count)]
        torch.distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim)

    q, k, v = (gathered(part, 1) for part in (inputs.q_BHQD, inputs.k_BKTD, inputs.v_BKTD))
    sinks_H = gathered(inputs.sinks_H, 0) if inputs.sinks_H is not None else None
    return replace(inputs, q_BHQD=q, k_BKTD=k, v_BKTD=v, sinks_H=sinks_H)


class Logsumexp(TorchDispatchMode):
    """Catches the natural log of each row's sum, which flash attention returns with its output, for the GPU kernel."""

    def __init__(self, caught: list[torch.Tensor]) -> None:
        super().__init__()
        self.caught = caught

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in FLASH:
            self.caught.append(out[1])
        return out


def mask(*args: Any, **kwargs: Any) -> Any:
    """The mask that the model's original implementation would receive."""
    return ALL_MASK_ATTENTION_FUNCTIONS[_current().base](*args, **kwargs)


def base_function(module: torch.nn.Module, name: str) -> Callable[..., Any]:
    """The implementation that the model's own code would call."""
    home = sys.modules[type(module).__module__]
    if name == "eager":
        eager = getattr(home, "eager_attention_forward", None)
        if eager is None:
            raise FloatLensError(
                f"{type(module).__name__} has no eager attention function; load with attn_implementation='sdpa'"
            )
        return eager
    return getattr(home, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)[name]


def _current() -> Active:
    current = _active.get() or (_shared[-1] if _shared else None)
    if current is None:
        raise RuntimeError("the floatlens attention function was called outside `observing`")
    return current


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)


@contextmanager
def observing(
    model: Any,
    session: Session,
    *,
    others: Mapping[str, Session] | None = None,
    parts: Mapping[int, str] | None = None,
) -> Iterator[Session]:
    """Show every attention call of a model to `session`; the model is restored when the block ends.

    `others` observe further parts of the model, which `parts` names by the ids of modules.
    """
    watched = _installed(model, session=session, others=others or {}, parts=parts or {})
    with watched, mixers_observed(model, session), hidden_observed(model, session):
        yield session


def changing(model: Any, change: AttentionChange) -> AbstractContextManager[None]:
    """Let `change` compute every attention call of a model; the model is restored when the block ends."""
    return _installed(model, change=change)


@contextmanager
def shared() -> Iterator[None]:
    """Make the active sessions and changes of this thread active in every thread that has none itself."""
    current = _active.get()
    assert current is not None
    _shared.append(current)
    try:
        yield
    finally:
        _shared.remove(current)


@contextmanager
def _installed(model: Any, **fields: Any) -> Iterator[None]:
    """Make a model call the registered functions; `fields` replace those of the sessions and changes that are active."""
    configs = {id(config): config for config in configs_of(model).values() if config._attn_implementation}
    names = {config._attn_implementation for config in configs.values()}
    outer, by_name = _active.get(), bool(names) and passes_interface(model)
    if by_name and len(names) > 1:
        raise FloatLensError(
            f"the parts of {type(model).__name__} use several attention implementations: {sorted(names)}"
        )
    base = names.pop() if by_name else "function"
    if outer is None or (base != NAME if by_name else outer.model is not model):
        outer = Active(base, model)
    active = replace(outer, model=model, calls=0, forward=None, **fields)
    token = _active.set(active)
    try:
        with ExitStack() as stack:
            if by_name:
                for config in configs.values():
                    stack.callback(setattr, config, "_attn_implementation_internal", config._attn_implementation)
                    config._attn_implementation_internal = NAME
            elif active.mode is None and not any(is_mixer(module) for module in model.modules()):
                # The products inside a mixer are not attention.
                stack.enter_context(_function_mode(active))
            yield
    finally:
        _active.reset(token)


@contextmanager
def _function_mode(active: Active) -> Iterator[None]:
    """Observe a model that does not use the attention interface through the torch functions that it calls."""

    def compute_now(inputs: Inputs, base: Callable[[], Any], part: str | None, finish: Any) -> Any:
        now = _active.get()
        assert now is not None
        part = part or next(reversed(now_in), None)
        if part is None and now.session is not None and now.session.first_call is not None:
            now.session.first_call(inputs)
        if part is None and not is_of_sequence(inputs):
            return base()
        return compute(now, inputs, base, part, finish)

    now_in: list[str] = []  # the parts that are running, the innermost last
    active.mode = FunctionMode(compute_now)
    with ExitStack() as stack, active.mode:
        for module in active.model.modules():
            if part := active.parts.get(id(module)):
                enter = module.register_forward_pre_hook(lambda *_, part=part: now_in.append(part))
                leave = module.register_forward_hook(lambda *_: now_in.pop() and None, always_call=True)
                stack.callback(enter.remove)
                stack.callback(leave.remove)
        yield


def passes_interface(model: torch.nn.Module) -> bool:
    """Whether any module of a model uses transformers' attention interface."""
    if getattr(getattr(model, "config", None), "model_type", None) in FUNCTIONS_ONLY:
        return False
    if model not in _passes:  # cached, because it is needed at every step
        homes = {type(module).__module__ for module in model.modules()}
        _passes[model] = any(hasattr(sys.modules.get(home), "ALL_ATTENTION_FUNCTIONS") for home in homes)
    return _passes[model]


def configs_of(model: Any) -> dict[int, Any]:
    """The configs of a model's parts that select its attention implementation."""
    if model not in _configs:
        configs = (module.config for module in model.modules() if hasattr(module, "config"))
        _configs[model] = {id(one): one for one in configs if hasattr(one, "_attn_implementation")}
    return _configs[model]


_passes: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
_configs: WeakKeyDictionary[torch.nn.Module, dict[int, Any]] = WeakKeyDictionary()
