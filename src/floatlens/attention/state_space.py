"""State-space layers (Mamba) as attention: a mixer's scan, written as a weighted sum (arXiv 2403.01590).

A scan computes y_i = Σ_j α_ij x_j + D x_i with

    α_ij = Σ_n C_i[n] · exp(a[n] · Σ dt over the positions after j up to i) · dt_j · B_j[n]

for all j that are read no later than i. A Mamba-2 layer has one α per head; a Mamba layer one per channel, and all of its
channels form one head. α is signed and its rows do not sum to one, so statistics see it through a convention, `RULE`:
absolute values, each row divided by its sum, then the mean over the channels of a head.

The input of a mixer is read by a hook, and its projections and convolution are computed a second time, so it does not
matter which kernel the mixer itself runs. A layer with one mixer per direction is one call, with the forward heads first.

Shapes: B batch, T positions, U scans (channels of Mamba, heads of Mamba-2), H heads, N state size, Q rows of a tile.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from floatlens.attention.call import Inputs, PositionLayout
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.attention.session import Session

RULE = "implicit(absolute, row-normalised, channel-mean)"
ROOM = 1 << 20  # largest number of values of α that are computed at once
TINY = torch.finfo(torch.float32).tiny
MIXERS = {  # without the mixers of hybrid models, where only the attention layers are observed
    ("transformers.models.mamba.modeling_mamba", "MambaMixer"),
    ("transformers.models.mamba2.modeling_mamba2", "Mamba2Mixer"),
}


@dataclass(frozen=True)
class Scan:
    """One direction of a layer, its tensors in the order of the positions.

    x_BTHP     the vectors that are summed: the input after the convolution
    dt_BTU     step sizes, after the softplus
    a_UN       the diagonal of A, negative; one column where it is the same for the whole state (Mamba-2)
    b_BTGN, c_BTGN   G is 1 where all scans share them (Mamba), else U
    reverse    whether the positions are read from the last to the first
    """

    x_BTHP: Tensor
    dt_BTU: Tensor
    a_UN: Tensor
    b_BTGN: Tensor
    c_BTGN: Tensor
    reverse: bool = False

    H = property(lambda self: self.x_BTHP.shape[2])
    T = property(lambda self: self.dt_BTU.shape[1])

    @cached_property
    def read_BUT(self) -> Tensor:
        """Sum of the step sizes of all positions read so far, in float64: differences of it are exponents."""
        dt = self.dt_BTU.double().transpose(1, 2)
        return dt.flip(2).cumsum(2).flip(2) if self.reverse else dt.cumsum(2)

    def unread(self, start: int, end: int) -> Tensor:
        """True where a key is read after the query (end-start, T)."""
        device = self.dt_BTU.device
        queries, keys = torch.arange(start, end, device=device)[:, None], torch.arange(self.T, device=device)[None]
        return keys < queries if self.reverse else keys > queries

    def alpha(self, start: int, end: int, scans: slice = slice(None)) -> Tensor:
        """α of rows start..end and some of the scans, signed (B, U, end-start, T)."""
        read = self.read_BUT[:, scans]
        past = (read[:, :, start:end, None] - read[:, :, None, :]).float().clamp_min_(0.0)
        a_UN = self.a_UN.float()[scans]
        groups = slice(None) if self.b_BTGN.shape[2] == 1 else scans
        b, c = (v.float()[:, :, groups].transpose(1, 2) for v in (self.b_BTGN, self.c_BTGN[:, start:end]))
        if a_UN.shape[1] == 1:
            total = (c @ b.transpose(2, 3)) * past.mul_(a_UN[:, :, None]).exp_()
        else:
            total = torch.zeros_like(past)
            for n in range(a_UN.shape[1]):
                total += (past * a_UN[:, n, None, None]).exp_() * (c[..., n, None] * b[..., None, :, n])
        total *= self.dt_BTU.float().transpose(1, 2)[:, scans, None, :]
        return total.masked_fill_(self.unread(start, end), 0.0)

    def weights(self, start: int, end: int) -> Tensor:
        """Attention of rows start..end by `RULE` (B, H, end-start, T)."""
        B, T, U = self.dt_BTU.shape
        each = U // self.H
        if each == 1:
            alpha = self.alpha(start, end).abs_()
            return alpha.div_(alpha.sum(-1, keepdim=True).clamp_min(TINY))
        at_once = max(1, ROOM // (B * (end - start) * T))
        parts = []
        for head in range(self.H):
            total = torch.zeros(B, end - start, T, device=self.dt_BTU.device)
            for first in range(head * each, (head + 1) * each, at_once):
                alpha = self.alpha(start, end, slice(first, min(first + at_once, (head + 1) * each))).abs_()
                total += (alpha / alpha.sum(-1, keepdim=True).clamp_min(TINY)).sum(1)
            parts.append(total / each)
        return torch.stack(parts, 1)


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


def scans_of(module: Any, u_BTD: Tensor, mask_BT: Tensor | None = None) -> tuple[Scan, ...]:
    """The scans of a mixer, or of a pair of mixers `mamba_fwd` and `mamba_rev`, on their input."""
    if is_mixer(module):
        return (scan_of(module, u_BTD, mask_BT),)
    forward, backward = module.mamba_fwd, module.mamba_rev
    return scan_of(forward, u_BTD, mask_BT), scan_of(backward, u_BTD, mask_BT, reverse=True)


def inputs_of(scans: tuple[Scan, ...], layout: PositionLayout | None) -> Inputs:
    """The scans of a layer as attention: C is the query, B the key and the scan's input the value.

    A layer has one scan, or one in each direction, whose heads come one after another.
    """
    q = torch.cat([scan.c_BTGN.transpose(1, 2).expand(-1, scan.H, -1, -1) for scan in scans], 1)
    k = torch.cat([scan.b_BTGN.transpose(1, 2).expand(-1, scan.H, -1, -1) for scan in scans], 1)
    v = torch.cat([scan.x_BTHP.transpose(1, 2) for scan in scans], 1)
    mask = None if layout is None or layout.real_BN is None else layout.real_BN[:, None, None, : q.shape[2]]
    causal = not any(scan.reverse for scan in scans)
    if not causal:
        read_BHTT = torch.cat([~scan.unread(0, scan.T).expand(1, scan.H, -1, -1) for scan in scans], 1)
        mask = read_BHTT if mask is None else read_BHTT & mask

    def rows(start: int, end: int) -> Tensor:
        return torch.cat([scan.weights(start, end) for scan in scans], 1)

    return Inputs(q, k, v, 1.0, mask, causal, own_rows=rows)


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
        rows = slice(session.rows)  # guidance adds a second copy of the batch
        with torch.no_grad():
            inputs = inputs_of(scans_of(module, u_BTD[rows], None if mask is None else mask[rows]), session.layout)
            session.see(layer, inputs)

    with ExitStack() as stack:
        for module in mixers:
            stack.callback(module.register_forward_pre_hook(show, with_kwargs=True).remove)
        yield
