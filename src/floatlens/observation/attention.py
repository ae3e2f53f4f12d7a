"""The hook into transformers: an attention function and a mask function that it calls by name.

The output comes from the implementation that the model had before (SDPA, flash, eager); the registered function calls it
with the same arguments and then shows queries, keys and values to the active session. Both must be registered: with the
attention function alone transformers passes no padding mask, and nothing warns. An `AttentionChange` may compute the output
in another way (interventions/); the session then sees what was really used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from floatlens.decode.network import ForwardPass, current_pass
from floatlens.errors import FloatLensError
from floatlens.observation.mixers import mixers_observed
from floatlens.observation.session import Session

NAME = "floatlens"
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class Inputs:
    """One call as every implementation understands it: query (B, H, Q, D), key and value (B, K, T, D).

    `mask` is None, boolean (True = may see) or additive and broadcasts to (B, H, Q, T); `causal` says that none was passed
    because the kernel applies the causal one itself; `sinks` (H,) are learned scores that are no position. Layers of
    another `kind` differ in what they may see.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float | None
    mask: torch.Tensor | None
    causal: bool
    softcap: float | None = None
    bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    kind: Hashable = None

    def shown(self) -> dict[str, Any]:
        """The arguments of `Session.see`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class AttentionChange(Protocol):
    """Something that changes attention while it is computed: the output in place of `base()`, and the inputs as used.

    Whoever calls `base()` used the inputs as they are.
    """

    def __call__(self, layer: int, inputs: Inputs, base: Callable[[], Any]) -> tuple[Any, Inputs]: ...


@dataclass
class Active:
    """What is active while a model runs; `base` is the implementation that it had before."""

    session: Session | None
    base: str
    change: AttentionChange | None = None
    calls: int = 0
    forward: ForwardPass | None = None

    def number(self, module: torch.nn.Module) -> int:
        """The layer of a module that is called: its own number, else how many were called before it in this pass."""
        forward = current_pass()
        if forward is not self.forward:
            self.forward, self.calls = forward, 0
            if self.session is not None:
                self.session.calls = 0
        number = self.calls if self.session is None else self.session.calls
        self.calls += 1
        if self.session is not None:
            self.session.calls += 1
        own = getattr(module, "layer_idx", None)
        return number if own is None else int(own)


_active: ContextVar[Active | None] = ContextVar("floatlens_active", default=None)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute attention as the model would, or as a change does, then show it to the session."""
    active = _current()
    session, base = active.session, active.base
    heard = Logsumexp()
    listens = session is not None and query.shape[2] > 1 and query.dtype == torch.float32

    def unchanged() -> Any:
        with heard if listens else nullcontext():
            return base_function(module, base)(module, query, key, value, attention_mask, *args, **kwargs)

    layer = active.number(module)
    inputs = inputs_of(module, base, query, key, value, attention_mask, kwargs)
    if active.change is None:
        output, used = unchanged(), inputs
    else:
        output, used = active.change(layer, inputs, unchanged)
        used = replace(used, kind=layer)  # a change may give each layer a mask of its own at any step
    if session is not None:
        seen = gather_heads(used, module)
        session.see(layer, **seen.shown(), lse=heard.of(query) if active.change is None and seen is used else None)
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
    """The inputs of an implementation, with the flags that it turns into masks written out."""
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise FloatLensError(
            f"attention implementation {base!r} cannot be observed; load with attn_implementation='sdpa'"
        )
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if mask is not None and mask.ndim == 2:  # flash attention: padding of the keys; causality and window are flags
        mask = mask[:, None, None, :].bool()
        causal = bool(causal) and query.shape[2] > 1
    else:
        causal = bool(causal) and query.shape[2] > 1 and mask is None and base != "eager"
    if base.startswith("flash") and kwargs.get("sliding_window"):
        mask, causal = (
            sliding_window_mask(mask, query.shape[2], key.shape[2], int(kwargs["sliding_window"]), query.device),
            False,
        )
    if causal and key.shape[2] > query.shape[2]:  # an empty static cache: the keys past the queries are not there yet
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    options = {"softcap": kwargs.get("softcap"), "bias": kwargs.get("position_bias"), "sinks": kwargs.get("s_aux")}
    return Inputs(query, key, value, kwargs.get("scaling"), mask, causal, **options, kind=kwargs.get("sliding_window"))


def gather_heads(inputs: Inputs, module: torch.nn.Module) -> Inputs:
    """All heads, gathered from the processes of a tensor parallel plan in their order."""
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    if heads in (None, inputs.query.shape[1]) or not torch.distributed.is_initialized():
        return inputs
    count = torch.distributed.get_world_size()
    if inputs.query.shape[1] * count != heads or inputs.bias is not None:
        raise FloatLensError(f"{type(module).__name__} cannot be observed while it is split over {count} processes")

    def gathered(part: torch.Tensor, dim: int) -> torch.Tensor:
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(count)]
        torch.distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim)

    query, key, value = (gathered(part, 1) for part in (inputs.query, inputs.key, inputs.value))
    sinks = gathered(inputs.sinks, 0) if inputs.sinks is not None else None
    return replace(inputs, query=query, key=key, value=value, sinks=sinks)


class Logsumexp(TorchDispatchMode):
    """Catches the log of each row's sum, which the fused kernel returns beside its output.

    In float32 only: in a shorter type the kernel's sums are rounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is FUSED:
            self.heard.append(out[1])
        return out

    def of(self, query: torch.Tensor) -> torch.Tensor | None:
        """The logs (B, H, Q) of the one kernel that ran; None if another did."""
        if len(self.heard) != 1 or self.heard[0].shape != query.shape[:3]:
            return None
        return self.heard[0]


def mask(*args: Any, **kwargs: Any) -> Any:
    """The mask that the model's own implementation would get."""
    return ALL_MASK_ATTENTION_FUNCTIONS[_current().base](*args, **kwargs)


def sliding_window_mask(
    padding: torch.Tensor | None, queries: int, keys: int, window: int, device: torch.device
) -> torch.Tensor:
    """The causal sliding-window mask that flash attention applies by flag (B or 1, 1, Q, T)."""
    q = torch.arange(keys - queries, keys, device=device)[:, None]
    k = torch.arange(keys, device=device)[None, :]
    visible = ((k <= q) & (k > q - window))[None, None]
    return visible if padding is None else visible & padding


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
    current = _active.get()
    if current is None:
        raise RuntimeError("the floatlens attention function was called outside `observing`")
    return current


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)


Configs = dict[int, Any]


@contextmanager
def observation_paused() -> Iterator[None]:
    """Hide what runs in the block from the active session, if there is one."""
    current = _active.get()
    session = current.session if current is not None else None
    if session is None:
        yield
        return
    before, session.paused = session.paused, True
    try:
        yield
    finally:
        session.paused = before


@contextmanager
def observing(model: Any, session: Session, configs: Configs | None = None) -> Iterator[Session]:
    """Show every attention call of a transformers model to `session`; everything is as before when the block ends.

    `configs` are `configs_of(model)`, for a caller that enters the block often.
    """
    with (
        _installed(model, lambda outer, base: Active(session, base, outer.change if outer else None), configs),
        mixers_observed(model, session),
    ):
        yield session


@contextmanager
def changing(model: Any, change: AttentionChange, configs: Configs | None = None) -> Iterator[None]:
    """Let `change` compute every attention call of a transformers model; everything is as before when the block ends."""
    with _installed(model, lambda outer, base: Active(outer.session if outer else None, base, change), configs):
        yield


@contextmanager
def _installed(model: Any, make: Callable[[Active | None, str], Active], configs: Configs | None) -> Iterator[None]:
    """Make a model call the registered functions; `make` is given what is active on the model already."""
    configs = configs_of(model) if configs is None else configs
    before = {key: config._attn_implementation for key, config in configs.items()}
    names = {name for name in before.values() if name}
    if not names:
        raise FloatLensError(
            f"{type(model).__name__} does not use transformers' attention interface; use floatlens.observe"
        )
    if len(names) > 1:
        raise FloatLensError(
            f"the parts of {type(model).__name__} use several attention implementations: {sorted(names)}"
        )
    name = names.pop()
    outer = _active.get() if name == NAME else None
    token = _active.set(make(outer, outer.base if outer else name))
    try:
        for key, config in configs.items():
            if before[key]:
                config._attn_implementation_internal = NAME
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]
        _active.reset(token)


def configs_of(model: Any) -> Configs:
    """The configs of a model's parts that say which attention implementation it calls."""
    return {
        id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")
    }
