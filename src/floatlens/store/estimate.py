"""The time and memory of a trace that `floatlens models NAME` prints, from the model's shape; no weights are read.

A step of a masked diffusion model (MDM) is a forward pass over the whole sequence. An autoregressive model (ARM) passes
over the prompt once and then over one token per step, reading all its weights each time. Observation computes the scores
of all queries and keys a second time in every layer, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from floatlens.attention.session import ROOM
from floatlens.attention.stream import TILE
from floatlens.models.checkpoint import Checkpoint
from floatlens.models.describe import bytes_per_step, meta_model, shape

FORWARD_SHARE = 0.4  # share of the peak that forward passes reach
OBSERVATION_SHARE = 0.25  # share of the float32 peak that observation reaches, since it computes many exponentials
READING_SHARE = 0.6  # share of the bandwidth that reading weights and caches reaches
ELEMENTWISE = 12  # operations per score besides its product: scale, mask, exponential, sums
REGIONS = 16  # regions of a prompt: their sums of attention are kept per head while a layer is observed


# Peak numbers of a device: dense 16-bit and float32 TFLOP/s and GB/s, as published by its manufacturer, rounded.
DEVICES = {
    "A100": (312, 19.5, 2039),
    "CPU core": (0.06, 0.06, 10),  # of a server, in float32; 16-bit numbers are not faster there
}


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that the estimate uses."""

    cached: bool  # whether a step extends a cache of keys and values, as in an ARM
    parameters: int
    active: int  # parameters in matrix products per token, without the head
    head: int  # parameters of the output head
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    itemsize: int  # bytes per parameter


def measure_model(checkpoint: Checkpoint, dtype: str = "bfloat16") -> ModelSize:
    """Count the parameters on the meta device; no weights are read."""
    config = checkpoint.native_config()
    made, s = meta_model(checkpoint.family, config), {name: value or 0 for name, value in shape(config).items()}
    output = made.get_output_embeddings()
    linear = [m.weight for m in made.modules() if isinstance(m, torch.nn.Linear) and m is not output]
    experts = [p for p in made.parameters() if p.ndim == 3]
    chosen = getattr(config, "num_experts_per_tok", 1) or 1
    of = max(1, getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1)
    return ModelSize(
        cached=checkpoint.family.cached,
        parameters=sum(p.numel() for p in made.parameters()),
        active=sum(w.numel() for w in linear) + sum(p.numel() for p in experts) * chosen // of,
        head=output.weight.numel() if output is not None else 0,
        itemsize=4 if dtype == "float32" else 2,
        **{name: s[name] for name in ("layers", "heads", "kv_heads", "head_dim", "width", "vocabulary")},
    )


def operations(model: ModelSize, prompt: int, new: int, steps: int) -> tuple[float, float]:
    """Operations of the forward passes that write `new` tokens after `prompt` tokens, and of observing them.

    A product of a matrix and a vector takes two operations per parameter. Attention has two products of queries and keys;
    observing it takes one of them again, and `ELEMENTWISE` operations on each score. The upper half of a causal pass over
    the prompt is counted too, although kernels skip most of it.
    """
    T = prompt + new
    passes = [(T, T, new)] * steps  # queries, keys and logits of each
    if model.cached:
        passes = [(prompt, prompt, 1), *((1, length, 1) for length in range(prompt + 1, T))]
    scores = float(model.layers * model.heads * sum(queries * keys for queries, keys, _ in passes))
    products = sum(model.active * queries + model.head * logits for queries, _, logits in passes)
    return 2.0 * products + 4 * model.head_dim * scores, (2 * model.head_dim + ELEMENTWISE) * scores


def seconds(model: ModelSize, device: str, prompt: int, new: int, steps: int) -> tuple[float, float]:
    """Seconds of forward passes and of observation, for one sequence on one of `DEVICES`.

    A pass takes as long as its arithmetic or its reading of weights and cache, whichever is longer.
    """
    forward, observation = operations(model, prompt, new, steps)
    half, single, bandwidth = DEVICES[device]
    peak = (half if model.itemsize == 2 else single) * 1e12 * FORWARD_SHARE
    read = model.parameters * model.itemsize + cache_bytes(model, prompt + new)
    reading = (new if model.cached else steps) * read / (bandwidth * 1e9 * READING_SHARE)
    return max(forward / peak, reading), observation / (single * 1e12 * OBSERVATION_SHARE)


def cache_bytes(model: ModelSize, length: int) -> int:
    """Bytes of the keys and values of one sequence, if they are kept."""
    return 2 * model.layers * model.kv_heads * model.head_dim * length * model.itemsize if model.cached else 0


def observation_memory(model: ModelSize, length: int, batch: int = 1) -> float:
    """Bytes that observation adds to a forward pass over `length` positions; it grows linearly with the length.

    A layer needs two blocks of attention weights, and float32 copies of 16-bit queries and keys; a block has `TILE` numbers,
    or one query's row for the heads that share a key where that is more. Its sums over regions wait for those of other
    layers, at most `ROOM` bytes of them. The statistics of all layers are kept until the end of the pass.
    """
    H, K, D, positions = model.heads, model.kv_heads, model.head_dim, batch * length
    copies = positions * (H + K) * D * 4 if model.itemsize < 4 else 0
    blocks = 2 * max(TILE, length * H // max(1, K)) * 4
    sums = positions * H * REGIONS * 4
    kept = batch * bytes_per_step(model.layers, H, K, length)
    return float(copies + blocks + max(sums, min(ROOM, model.layers * sums)) + kept)


def memory(model: ModelSize, prompt: int, new: int) -> float:
    """Bytes of a trace on the device: weights, cache, activations of a layer, logits, and the memory of observation."""
    T = prompt + new
    activations = T * (6 * model.width + 4 * model.active / max(1, model.layers) / max(1, model.width))
    logits = (1 if model.cached else new) * model.vocabulary * 4 * 3
    held = model.parameters * model.itemsize + cache_bytes(model, T) + activations * model.itemsize + logits
    return held + observation_memory(model, T)
