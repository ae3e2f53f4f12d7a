"""SmolLM2 with a low-rank adapter, written for training on one CPU thread.

Rows of different lengths lie one after another in one matrix, so nothing is padded; only attention looks at rows one by
one. The adapter is added to the weights once per step (`Network.merge`), so that a forward pass costs what the plain
model costs; the backward pass computes the gradients of the two small factors and never that of the whole matrix.

The residual stream, the norms, the losses and the trained parameters are float32. The matrix products run in `dtype`:
bfloat16 on a CPU with bfloat16 instructions (2.3 times as fast there), else float32.

Letters of shapes: N tokens of all rows, T tokens of one row, P cached tokens before them, H heads, K key/value heads,
D head size, W width, R rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

RANK, ALPHA = 16, 32
SCALE = ALPHA / RANK
# Matrices that read the same input are one matrix here; peft knows them by these names.
GROUPS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def fast_dtype() -> torch.dtype:
    """The dtype in which this CPU multiplies matrices fastest."""
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


class LowRank(torch.autograd.Function):
    """x times the merged weight, with gradients for x and for the factors A (stacked by matrix) and B.

    The products are computed in the dtype of the weight; x, the result and the gradients are float32.
    """

    @staticmethod
    def forward(ctx, x_NW, weight, a, b, sizes):  # type: ignore[no-untyped-def]
        x_NW = x_NW.to(weight.dtype)
        ctx.save_for_backward(x_NW, weight, a, b)
        ctx.sizes = sizes
        return (x_NW @ weight.T).float()

    @staticmethod
    def backward(ctx, grad_NO):  # type: ignore[no-untyped-def]
        x_NW, weight, a, b = ctx.saved_tensors
        grad_NO, a, b = (part.to(weight.dtype) for part in (grad_NO, a, b))
        low_NR = x_NW @ a.T
        grads = grad_NO.split(ctx.sizes, 1)
        back_NR = torch.cat([g @ part for g, part in zip(grads, b.split(ctx.sizes), strict=True)], 1)
        grad_b = torch.cat([g.T @ low for g, low in zip(grads, low_NR.split(RANK, 1), strict=True)])
        return (grad_NO @ weight).float(), None, (back_NR.T @ x_NW).float() * SCALE, grad_b.float() * SCALE, None


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
    half = x_NHD.shape[-1] // 2
    turned = torch.cat([-x_NHD[..., half:], x_NHD[..., :half]], -1)
    return x_NHD * cos_ND[:, None] + turned * sin_ND[:, None]


def before_attention(x, cos, sin, norm, weight, a, b, sizes, head_dim, eps):  # type: ignore[no-untyped-def]
    """Queries, keys and values, (N, heads, D)."""
    q, k, v = LowRank.apply(rms(x, norm, eps), weight, a, b, sizes).split(sizes, 1)
    q, k, v = (part.unflatten(1, (-1, head_dim)) for part in (q, k, v))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def after_attention(x, mixed, norm, o, gate_up, down, sizes, eps):  # type: ignore[no-untyped-def]
    """The residual stream after a layer; o, gate_up and down are (weight, A, B)."""
    x = x + LowRank.apply(mixed, *o, sizes["o"])
    gate, up = LowRank.apply(rms(x, norm, eps), *gate_up, sizes["gate_up"]).split(sizes["gate_up"], 1)
    return x + LowRank.apply(F.silu(gate) * up, *down, sizes["down"])


def attention(
    q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, may_see: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of one row; the queries that share a key head are laid one after another instead of copying the keys.

    `may_see` is bool, (queries, keys), or None if every query sees every key.
    """
    T, H, D = q_THD.shape
    K = k_TKD.shape[1]
    q_KXD = q_THD.view(T, K, H // K, D).permute(1, 2, 0, 3).reshape(1, K, -1, D)
    mask = None if may_see is None else may_see.repeat(H // K, 1)
    out_KXD = F.scaled_dot_product_attention(q_KXD, k_TKD.transpose(0, 1)[None], v_TKD.transpose(0, 1)[None], mask)
    return out_KXD.view(K, H // K, T, D).permute(2, 0, 1, 3).reshape(T, H * D)


class Network:
    """The base model's weights, an adapter and the vector of the mask."""

    def __init__(
        self, model: Any, mask_id: int, *, dtype: torch.dtype = torch.float32, compile: bool = True, seed: int = 0
    ) -> None:
        config = model.config
        self.dtype = dtype
        self.head_dim, self.eps, self.mask_id = config.head_dim, config.rms_norm_eps, mask_id
        half = torch.arange(0, self.head_dim, 2) / self.head_dim
        self.frequencies = 1.0 / config.rope_parameters["rope_theta"] ** half
        self.table = model.model.embed_tokens.weight.detach()
        self.head = self.table.to(dtype)
        self.norm = model.model.norm.weight.detach()
        self.norms = [
            (layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach())
            for layer in model.model.layers
        ]
        self.base: list[dict[str, torch.Tensor]] = []
        self.sizes: dict[str, list[int]] = {}
        self.a: list[dict[str, torch.nn.Parameter]] = []
        self.b: list[dict[str, torch.nn.Parameter]] = []
        generator = torch.Generator().manual_seed(seed)
        for layer in model.model.layers:
            parts = {g: [layer.get_submodule(n).weight.detach() for n in names] for g, names in GROUPS.items()}
            self.sizes = {group: [len(w) for w in ws] for group, ws in parts.items()}
            self.base.append({group: torch.cat(ws) for group, ws in parts.items()})
            a, b = {}, {}
            for group, ws in parts.items():
                width = ws[0].shape[1]
                uniform = torch.rand(RANK * len(ws), width, generator=generator) * 2 - 1
                a[group] = torch.nn.Parameter(uniform / width**0.5)
                b[group] = torch.nn.Parameter(torch.zeros(sum(self.sizes[group]), RANK))
            self.a.append(a)
            self.b.append(b)
        self.mask = torch.nn.Parameter(self.table.mean(0).clone())
        self.plain = [{group: w.to(dtype) for group, w in layer.items()} for layer in self.base]
        self.merged = [{group: w.to(dtype, copy=True) for group, w in layer.items()} for layer in self.base]
        wrap: Any = torch.compile if compile else (lambda f: f)
        self._before, self._after = wrap(before_attention), wrap(after_attention)

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for factors in (self.a, self.b) for layer in factors for p in layer.values()]

    @torch.no_grad()
    def merge(self) -> None:
        """Add the adapter to the weights: W + scale · B A."""
        for base, merged, a, b in zip(self.base, self.merged, self.a, self.b, strict=True):
            for group, sizes in self.sizes.items():
                rows = zip(
                    base[group].split(sizes),
                    merged[group].split(sizes),
                    a[group].split(RANK),
                    b[group].split(sizes),
                    strict=True,
                )
                for w, out, low, high in rows:
                    out.copy_(torch.addmm(w, high, low, alpha=SCALE))

    def embed(self, ids_N: torch.Tensor, hidden_N: torch.Tensor | None = None) -> torch.Tensor:
        """Embeddings, with the mask's vector where `hidden_N` says so."""
        x_NW = F.embedding(ids_N, self.table)
        return x_NW if hidden_N is None else torch.where(hidden_N[:, None], self.mask, x_NW)

    def layers(
        self, x_NW: torch.Tensor, positions_N: torch.Tensor, attend: Attend, adapted: bool = True
    ) -> torch.Tensor:
        """The residual stream after all layers and the last norm; `adapted` False runs the unchanged model."""
        angles_ND = (positions_N[:, None] * self.frequencies).repeat(1, 2)
        cos_ND, sin_ND = angles_ND.cos(), angles_ND.sin()
        weights = self.merged if adapted else self.plain
        for i, (w, a, b, (norm, norm2)) in enumerate(zip(weights, self.a, self.b, self.norms, strict=True)):
            q, k, v = self._before(
                x_NW, cos_ND, sin_ND, norm, w["qkv"], a["qkv"], b["qkv"], self.sizes["qkv"], self.head_dim, self.eps
            )
            mixed_NW = attend(i, q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)).float()
            o, gate_up, down = ((w[g], a[g], b[g]) for g in ("o", "gate_up", "down"))
            x_NW = self._after(x_NW, mixed_NW, norm2, o, gate_up, down, self.sizes, self.eps)
        return rms(x_NW, self.norm, self.eps)

    def logits(self, x_NW: torch.Tensor) -> torch.Tensor:
        return (x_NW.to(self.dtype) @ self.head.T).float()

    def save(self, folder: Path) -> None:
        """Write the adapter as peft does, in float16, and the mask's vector beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for i, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            for group, names in GROUPS.items():
                for name, low, high in zip(names, a[group].split(RANK), b[group].split(self.sizes[group]), strict=True):
                    key = f"base_model.model.model.layers.{i}.{name}"
                    tensors[f"{key}.lora_A.weight"] = low.detach().half().contiguous()
                    tensors[f"{key}.lora_B.weight"] = high.detach().half().contiguous()
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        save_file({"mask": self.mask.detach().clone()}, folder / "mask.safetensors")
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "r": RANK,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": sorted(name.split(".")[1] for names in GROUPS.values() for name in names),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        tensors = load_file(folder / "adapter_model.safetensors")
        for i, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            for group, names in GROUPS.items():
                keys = [f"base_model.model.model.layers.{i}.{name}" for name in names]
                a[group].copy_(torch.cat([tensors[f"{key}.lora_A.weight"] for key in keys]))
                b[group].copy_(torch.cat([tensors[f"{key}.lora_B.weight"] for key in keys]))
        self.mask.copy_(load_file(folder / "mask.safetensors")["mask"])
        self.merge()


def positions_of(lengths: Sequence[int], starts: Sequence[int] | None = None) -> torch.Tensor:
    """Positions of rows that lie one after another; row r begins at position starts[r].

    >>> positions_of([2, 3], [5, 0]).tolist()
    [5, 6, 0, 1, 2]
    """
    return torch.cat([torch.arange(n) + (0 if starts is None else starts[r]) for r, n in enumerate(lengths)])
