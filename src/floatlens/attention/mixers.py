"""The hook into Mamba's mixers: the input of a mixer is shown to the session as the implicit attention of its layer.

Projections and convolution are computed a second time from the mixer's input, so it does not matter which kernel the mixer
itself runs. A layer with one mixer per direction is one call, with the forward heads first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from floatlens.attention.implicit import ImplicitAttention, Scan
from floatlens.attention.session import Session
from floatlens.errors import FloatLensError

MIXERS = {  # without the mixers of hybrid models, where only the attention layers are observed
    ("transformers.models.mamba.modeling_mamba", "MambaMixer"),
    ("transformers.models.mamba2.modeling_mamba2", "Mamba2Mixer"),
}


def is_mixer(module: torch.nn.Module) -> bool:
    """Whether a module is a mixer whose scan can be read."""
    return (type(module).__module__, type(module).__name__) in MIXERS


def scan_of(mixer: Any, u_BTD: Tensor, mask_BT: Tensor | None = None, *, reverse: bool = False) -> Scan:
    """The scan of a mixer on its input. `reverse`: the mixer reads it from the last position to the first."""
    if reverse:
        turned = scan_of(mixer, u_BTD.flip(1), None if mask_BT is None else mask_BT.flip(1))
        x, dt, b, c = (v.flip(1) for v in (turned.x_BTHP, turned.dt_BTU, turned.b_BTGN, turned.c_BTGN))
        return Scan(x, dt, turned.a_UN, b, c, reverse=True)
    length, inner, state = u_BTD.shape[1], mixer.intermediate_size, mixer.ssm_state_size
    real = 1.0 if mask_BT is None else mask_BT[:, :, None].to(u_BTD.dtype)
    projected = mixer.in_proj(u_BTD * real)
    a = -torch.exp(mixer.A_log.float())

    def convolved(v_BTC: Tensor) -> Tensor:
        return mixer.act(mixer.conv1d(v_BTC.transpose(1, 2))[..., :length]).transpose(1, 2) * real

    if a.dim() == 2:
        x_BTC = convolved(projected[..., :inner])
        rank, b, c = mixer.x_proj(x_BTC).split([mixer.time_step_rank, state, state], -1)
        dt = F.softplus(F.linear(rank, mixer.dt_proj.weight).float() + mixer.dt_proj.bias.float())
        return Scan(x_BTC[:, :, None], dt, a, b[:, :, None], c[:, :, None])
    groups = mixer.n_groups * state
    _, xbc, dt = projected.split([inner, inner + 2 * groups, mixer.num_heads], -1)
    x, b, c = convolved(xbc).split([inner, groups, groups], -1)
    dt = F.softplus(dt.float() + mixer.dt_bias.float()).clamp(*mixer.time_step_limit)
    b, c = (
        v.unflatten(-1, (mixer.n_groups, state)).repeat_interleave(mixer.num_heads // mixer.n_groups, 2) for v in (b, c)
    )
    return Scan(x.unflatten(-1, (mixer.num_heads, -1)), dt, a[:, None], b, c)


def implicit_attention(module: Any, u_BTD: Tensor, mask_BT: Tensor | None = None) -> ImplicitAttention:
    """The implicit attention of a mixer, or of a pair of mixers `mamba_fwd` and `mamba_rev`, on their input."""
    if is_mixer(module):
        return ImplicitAttention((scan_of(module, u_BTD, mask_BT),))
    forward, backward = module.mamba_fwd, module.mamba_rev
    return ImplicitAttention((scan_of(forward, u_BTD, mask_BT), scan_of(backward, u_BTD, mask_BT, reverse=True)))


def mixers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The mixers of a model; a pair that reads in both directions counts once, as the module that contains it."""
    modules = list(model.modules())
    pairs: list[Any] = [
        module for module in modules if is_mixer(getattr(module, "mamba_fwd", module)) and hasattr(module, "mamba_rev")
    ]
    inside = {id(mixer) for pair in pairs for mixer in (pair.mamba_fwd, pair.mamba_rev)}
    return [*pairs, *(module for module in modules if is_mixer(module) and id(module) not in inside)]


_mixers: WeakKeyDictionary[torch.nn.Module, list[weakref.ref[torch.nn.Module]]] = WeakKeyDictionary()


@contextmanager
def mixers_observed(model: Any, session: Session) -> Iterator[None]:
    """Show every mixer of a model to `session`; the hooks are removed when the block ends."""
    if model not in _mixers:  # cached, because it is needed at every step
        _mixers[model] = [weakref.ref(module) for module in mixers_of(model)]
    mixers = [module for reference in _mixers[model] if (module := reference()) is not None]

    def show(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        u_BTD = args[0] if args else kwargs["hidden_states"]
        given = (*args[1:], *kwargs.values())
        cache, mask = kwargs.get("cache_params"), kwargs.get("attention_mask")
        if mask is None:
            mask = next((v for v in given if isinstance(v, Tensor) and v.shape == u_BTD.shape[:2]), None)
        if cache is not None and u_BTD.shape[1] == 1:
            raise FloatLensError(
                f"{type(module).__name__} continued from its state, which no longer distinguishes the positions; "
                f"generate with use_cache=False to observe it"
            )
        layer = getattr(module, "mamba_fwd", module).layer_idx
        with torch.no_grad():
            session.see_implicit(layer, implicit_attention(module, u_BTD, mask))

    with ExitStack() as stack:
        for module in mixers:
            stack.callback(module.register_forward_pre_hook(show, with_kwargs=True).remove)
        yield
