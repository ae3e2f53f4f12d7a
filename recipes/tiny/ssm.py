"""The network of tiny-ssm: bidirectional Mamba-2, trained in a form of the scan that is made of matrix products.

Within a chunk of rows the scan is a product like attention, `(C Bᵀ ⊙ decay) x`; a state is passed between chunks. The result
equals that of transformers' mixers (within 1e-5, see `tests/recipes/test_ssm.py`), about ten times as fast in training on a
CPU. The weights are those of `floatlens.models.bimamba_network`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.mamba2.modeling_mamba2 import Mamba2Output

from floatlens.models.bimamba_network import BiMamba2Config, BiMamba2ForMaskedLM
from recipes.tiny import ssm_kernel
from recipes.tiny.model import EPSILON, HEADS, LAYERS, WIDTH, sizes

STATE, KERNEL, CHUNK = 32, 4, 32
BACK = (0.2, 0.5, 1.0, 0.1)  # taps of a convolution over the previous tokens: −3, −2, −1, itself
HERE = (0.05, 0.1, 0.3, 1.0)


def config() -> BiMamba2Config:
    """Width, depth and heads of tiny-mdm; keys of 32 for every head."""
    native = sizes()
    return BiMamba2Config(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_heads=HEADS,
        head_dim=WIDTH // HEADS,
        expand=1,
        n_groups=HEADS,
        state_size=STATE,
        conv_kernel=KERNEL,
        chunk_size=CHUNK,
        layer_norm_epsilon=EPSILON,
        tie_word_embeddings=True,
        **{name: native[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")},
    )


def start(seed: int) -> BiMamba2ForMaskedLM:
    """The initial weights of a seed: long memory, and keys that match queries with the same tokens before them.

    C and B start equal, so that a position attends to similar ones, as `model.look_alike` does for attention. In half of the
    heads the convolution covers the previous tokens: a mask after a name is similar to the town after that name.
    """
    model = BiMamba2ForMaskedLM(config())
    generator = torch.Generator().manual_seed(seed)
    keys = HEADS * STATE
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                std = 0.1 if "embeddings" in name else weight.shape[1] ** -0.5
                weight.normal_(std=std * (0.4 / (2 * LAYERS) ** 0.5 if "out_proj" in name else 1), generator=generator)
        for layer in model.backbone.layers:
            for mixer in (layer.mixer.mamba_fwd, layer.mixer.mamba_rev):
                _, x, b, c, dt = mixer.in_proj.weight.split([WIDTH, WIDTH, keys, keys, HEADS])
                c.copy_(b)
                dt.mul_(0.2)
                taps = torch.tensor(HERE).expand(len(mixer.conv1d.weight), KERNEL).clone()
                taps += 0.1 * torch.randn(taps.shape, generator=generator)
                looking_back = torch.tensor(BACK) + 0.1 * torch.randn(keys // 2, KERNEL, generator=generator)
                taps[len(x) : len(x) + keys // 2] = looking_back
                taps[len(x) + keys :] = taps[len(x) : len(x) + keys]
                mixer.conv1d.weight.copy_(taps[:, None])
                mixer.conv1d.bias.zero_()
                mixer.A_log.copy_(
                    torch.tensor([0.01, 0.1, 0.02, 0.3]).log()
                )  # of two heads that look back, one is long
                mixer.dt_bias.fill_(-1.0)  # dt of 0.3: a memory of about 300, 30, 150 and 10 tokens
                mixer.D.fill_(1.0)
    return model


def convolve(x_BTC: Tensor, weight_CK: Tensor, bias_C: Tensor) -> Tensor:
    """Depthwise causal convolution, then SiLU."""
    width = weight_CK.shape[1]
    padded, length = F.pad(x_BTC, (0, 0, width - 1, 0)), x_BTC.shape[1]
    y_BTC = bias_C
    for tap in range(width):
        y_BTC = y_BTC + padded[:, tap : tap + length] * weight_CK[:, tap]
    return F.silu(y_BTC)


def scan(x_BTHP: Tensor, dt_BTH: Tensor, a_H: Tensor, b_BTHN: Tensor, c_BTHN: Tensor) -> Tensor:
    """Selective scan in chunks: y_i = Σ_{j ≤ i} (C_i · B_j) exp(a Σ_{j < k ≤ i} dt_k) dt_j x_j."""
    length = x_BTHP.shape[1]
    pad = -length % CHUNK
    chunks = (length + pad) // CHUNK

    def cut(v: Tensor) -> Tensor:  # (B, T, H, D) to (B, chunk, H, row, D)
        return F.pad(v, (0, 0, 0, 0, 0, pad)).unflatten(1, (chunks, CHUNK)).transpose(2, 3)

    x, b, c = cut(x_BTHP * dt_BTH[..., None]), cut(b_BTHN), cut(c_BTHN)
    log = cut((dt_BTH * a_H)[..., None])[..., 0].cumsum(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    decay = (log[..., :, None] - log[..., None, :]).masked_fill(later, -torch.inf).exp()
    y = ((c @ b.transpose(-1, -2)) * decay) @ x
    last = log[..., -1]
    made = (b * (last[..., None] - log).exp()[..., None]).transpose(
        -1, -2
    ) @ x  # the chunk's contribution to the state (N, P)
    passed = F.pad(last, (0, 0, 1, 0)).cumsum(1).transpose(1, 2)  # log decay of all chunks before chunk k: (B, H, k)
    over = passed[..., :-1, None] - passed[..., None, 1:]  # of the state made in chunk j, at the start of chunk i
    earlier = torch.ones(chunks, chunks, dtype=torch.bool).tril(-1)
    carried = over.masked_fill(~earlier, -torch.inf).exp()
    before = torch.einsum("bhij,bjhnp->bihnp", carried, made)
    y = y + (c * log.exp()[..., None]) @ before
    return y.transpose(2, 3).flatten(1, 2)[:, :length]


def mixed(mixer: Any, u_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """The output of a Mamba-2 mixer; only for one group per head. The mask is 0 at padding."""
    heads, width, keys = mixer.num_heads, mixer.intermediate_size, mixer.num_heads * mixer.ssm_state_size
    real = 1.0 if mask_BT is None else mask_BT[..., None].to(u_BTD.dtype)
    gate, rows, dt = mixer.in_proj(u_BTD * real).split([width, width + 2 * keys, heads], -1)
    dt = (
        F.softplus(dt + mixer.dt_bias) * real
    )  # with a step of 0 a position neither adds to the state nor makes it decay
    a, taps, bias = -mixer.A_log.exp(), mixer.conv1d.weight[:, 0], mixer.conv1d.bias
    if ssm_kernel.available():
        y = ssm_kernel.ConvolveAndScan.apply(rows, dt, a, mixer.D, taps.T, bias, mixer.ssm_state_size)
    else:
        y = convolve_and_scan(rows, dt, a, mixer.D, taps, bias, width)
    y = F.rms_norm(y * F.silu(gate), (width,), mixer.norm.weight, mixer.norm.variance_epsilon)
    return mixer.out_proj(y)


def convolve_and_scan(rows: Tensor, dt: Tensor, a: Tensor, d: Tensor, taps: Tensor, bias: Tensor, width: int) -> Tensor:
    """The computation of `ssm_kernel.c` in torch operations."""
    heads, keys = len(a), (rows.shape[-1] - width) // 2
    parts = convolve(rows, taps, bias).split([width, keys, keys], -1)
    x, b, c = (part.unflatten(-1, (heads, -1)) for part in parts)
    return (scan(x, dt, a, b, c) + d[:, None] * x).flatten(2)


def hidden(model: Any, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """The last hidden states (B, T, D)."""
    turned = None if mask_BT is None else mask_BT.flip(1)
    h = model.backbone.embeddings(ids_BT)
    for layer in model.backbone.layers:
        u = F.rms_norm(h, (h.shape[-1],), layer.norm.weight, layer.norm.variance_epsilon)
        h = h + mixed(layer.mixer.mamba_fwd, u, mask_BT) + mixed(layer.mixer.mamba_rev, u.flip(1), turned).flip(1)
    final = model.backbone.norm_f
    return F.rms_norm(h, (h.shape[-1],), final.weight, final.variance_epsilon)


def run_fast(model: Any) -> None:
    """Make a loaded model compute its states as in training, which is more than twice as fast."""

    def forward(ids_BT: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Mamba2Output:
        return Mamba2Output(hidden(model, ids_BT, attention_mask))

    model.backbone.forward = forward
