"""What a run would cost on given GPUs, from the model's shape alone: time, memory, storage, and every assumption.

A step of a diffusion model is a forward pass over the whole sequence. An autoregressive model passes over the prompt
once and then over one token a step, reading all its weights for it. Looking adds, at every layer, the scores of all
queries and keys once more in float32.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint
from floatlens.models.describe import bytes_per_step, shape
from floatlens.observation.group import ROOM as GROUP_BYTES
from floatlens.observation.tile import TILE

COMPUTE = 0.4  # share of the peak that forward passes reach
LOOKING = 0.25  # share of the float32 peak that looking reaches: it exponentiates as much as it multiplies
READING = 0.6  # share of the bandwidth that reading weights and caches reaches
ELEMENTWISE = 12  # operations on a score beside its product: scale, mask, exponential, sums
ROOM = 0.9  # share of a device's memory that is used
ROW_BYTES = 2000  # an answer's row and its result file
REGIONS = 16  # regions of a prompt: their sums of attention are kept per head while a layer is observed


@dataclass(frozen=True)
class Device:
    """Peak numbers of a device: dense 16-bit and float32 TFLOP/s, GB, GB/s, as published by the makers and rounded."""

    name: str
    half: float
    single: float
    memory: float
    bandwidth: float


DEVICES = {
    device.name.lower(): device
    for device in (
        Device("T4", 65, 8.1, 16, 320),
        Device("V100", 125, 15.7, 32, 900),
        Device("A100-40", 312, 19.5, 40, 1555),
        Device("A100", 312, 19.5, 80, 2039),
        Device("A6000", 155, 38.7, 48, 768),
        Device("L40S", 362, 91.6, 48, 864),
        Device("RTX3090", 71, 35.6, 24, 936),
        Device("RTX4090", 165, 82.6, 24, 1008),
        Device("H100", 989, 67, 80, 3350),
        Device("H200", 989, 67, 141, 4800),
        Device("B200", 2250, 80, 180, 8000),
        Device("MI300X", 1307, 163, 192, 5300),
        # One core of a server processor in float32, as the tests of this project run on; it has no faster half.
        Device("CPU", 0.06, 0.06, 8, 10),
    )
}


@dataclass(frozen=True)
class Work:
    """What is asked: so many samples of so many prompt tokens, so many new ones in so many steps."""

    samples: int
    prompt: int
    new: int
    steps: int
    trace: bool = True

    @property
    def length(self) -> int:
        return self.prompt + self.new


@dataclass(frozen=True)
class Model:
    """What counts of a model: parameters in matrix products outside and in the head, and the shape of its attention."""

    name: str
    diffusion: bool
    parameters: int
    active: int  # in matrix products for each token, without the head
    head: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    itemsize: int


def model_of(checkpoint: Checkpoint, dtype: str = "bfloat16") -> Model:
    """Count on a model without memory; no weight is read."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = checkpoint.native_config()
    auto = AutoModelForMaskedLM if checkpoint.family.head == "masked" else AutoModelForCausalLM
    with torch.device("meta"):
        made = auto.from_config(config, trust_remote_code=False)
    output = made.get_output_embeddings()
    linear = [m.weight for m in made.modules() if isinstance(m, torch.nn.Linear) and m is not output]
    experts = [p for p in made.parameters() if p.ndim == 3]
    chosen = getattr(config, "num_experts_per_tok", 1) or 1
    of = max(1, getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1)
    s = {name: value or 0 for name, value in shape(config).items()}
    return Model(
        name=checkpoint.name,
        diffusion=checkpoint.family.diffusion,
        parameters=sum(p.numel() for p in made.parameters()),
        active=sum(w.numel() for w in linear) + sum(p.numel() for p in experts) * chosen // of,
        head=output.weight.numel() if output is not None else 0,
        layers=s["layers"],
        heads=s["heads"],
        kv_heads=s["kv_heads"],
        head_dim=s["head_dim"],
        width=s["width"],
        vocabulary=s["vocabulary"],
        itemsize=4 if dtype == "float32" else 2,
    )


def forward_flops(model: Model, queries: int, keys: int, logits: int) -> float:
    """Of one forward pass over one sequence: `queries` tokens that see `keys`, and logits for some of them.

    A product of a matrix and a vector takes two operations a parameter; attention makes two products of queries and keys.
    """
    attention = 4 * model.layers * model.heads * model.head_dim * queries * keys
    return 2.0 * model.active * queries + attention + 2.0 * model.head * logits


def looking_flops(model: Model, queries: int, keys: int) -> float:
    """Of taking the statistics of one forward pass: the scores once more, and what is done with each of them."""
    return float(model.layers * model.heads * queries * keys * (2 * model.head_dim + ELEMENTWISE))


@dataclass(frozen=True)
class Cost:
    """Of one sample: operations of the forward passes and of looking, and bytes that are kept."""

    forward: float
    looking: float
    stored: float


def cost(model: Model, work: Work, itemsize: int = 4) -> Cost:
    """The cost of one sample."""
    T, P = work.length, work.prompt
    if model.diffusion:
        forward = work.steps * forward_flops(model, T, T, work.new)
        looking = work.steps * looking_flops(model, T, T)
    else:
        # A causal pass over the prompt computes the upper half too; kernels skip most of it, the count does not.
        forward = forward_flops(model, P, P, 1) + sum(forward_flops(model, 1, P + i, 1) for i in range(1, work.new))
        looking = looking_flops(model, P, P) + sum(looking_flops(model, 1, P + i) for i in range(1, work.new))
    kept = work.steps * bytes_per_step(model.layers, model.heads, model.kv_heads, T, itemsize) if work.trace else 0
    return Cost(forward, looking if work.trace else 0.0, kept + ROW_BYTES)


def seconds(model: Model, work: Work, device: Device, batch: int) -> tuple[float, float]:
    """Of one batch on one device: forward passes and looking. A pass takes as long as its sums or its reading."""
    one = cost(model, work)
    peak = (device.half if model.itemsize == 2 else device.single) * 1e12 * COMPUTE
    bandwidth = device.bandwidth * 1e9 * READING
    weights = model.parameters * model.itemsize
    passes = work.steps if model.diffusion else work.new
    cached = 0 if model.diffusion else batch * cache_bytes(model, work.length)
    forward = max(batch * one.forward / peak, passes * (weights + cached) / bandwidth)
    return forward, batch * one.looking / (device.single * 1e12 * LOOKING)


def cache_bytes(model: Model, length: int) -> int:
    """Keys and values of one sequence."""
    return 2 * model.layers * model.kv_heads * model.head_dim * length * model.itemsize


def observation_memory(model: Model, length: int, batch: int) -> float:
    """Bytes that observation adds to a forward pass over `length` positions; it grows linearly with the length.

    Layers are observed in groups whose queries, keys and values take at most `GROUP_BYTES`. Each group needs float32
    copies of its queries and keys and two blocks of attention weights; a block has `TILE` numbers, or one query's row
    for the heads that share a key where that is more. The statistics of all layers stay until the pass is over.
    """
    H, K, D, positions = model.heads, model.kv_heads, model.head_dim, batch * length
    of_layer = positions * (H + 2 * K) * D * model.itemsize
    layers = max(1, min(model.layers, GROUP_BYTES // max(1, of_layer)))
    alone = positions * H * D * 4 if model.itemsize < 4 else 0
    copies = layers * positions * (H + 2 * K) * D * 4 if layers > 1 else alone
    products = layers * positions * (H + K) * (D + 2) * 4
    blocks = 2 * max(TILE, length * H // max(1, K)) * 4
    sums = layers * positions * H * REGIONS * 4
    kept = batch * bytes_per_step(model.layers, H, K, length)
    return float(copies + products + blocks + sums + kept)


def memory(model: Model, work: Work, batch: int) -> float:
    """Bytes on the device: weights, cache, activations of a layer, logits, and the workspace of looking."""
    T = work.length
    activations = batch * T * (6 * model.width + 4 * model.active / max(1, model.layers) / max(1, model.width))
    logits = batch * (work.new if model.diffusion else 1) * model.vocabulary * 4 * 3
    tracing = observation_memory(model, T, batch) if work.trace else 0
    cache = 0 if model.diffusion else batch * cache_bytes(model, T)
    return model.parameters * model.itemsize + cache + activations * model.itemsize + logits + tracing


@dataclass(frozen=True)
class Estimate:
    """A run on so many devices."""

    model: Model
    work: Work
    device: Device
    devices: int
    devices_per_worker: int
    batch: int
    hours: float
    device_hours: float
    looking_share: float
    memory_per_device: float
    host_memory: float
    storage: float
    stored_per_sample: float
    operations: float

    @property
    def workers(self) -> int:
        return self.devices // self.devices_per_worker


def estimate(
    model: Model, work: Work, device: Device, devices: int, batch: int | None = None, itemsize: int = 4
) -> Estimate:
    """Time, memory and storage of a run; `batch` is the largest power of two that fits, up to 64, unless given."""
    room = device.memory * 1e9 * ROOM
    least = memory(model, work, batch or 1)
    share = math.ceil(least / room)
    if share > devices:
        raise FloatLensError(
            f"{model.name} needs {least / 1e9:.0f} GB, and {devices} x {device.name} have {devices * device.memory:.0f}; "
            "give more or larger --gpus, or a smaller --batch-size"
        )
    chosen = batch or max(b for b in (1, 2, 4, 8, 16, 32, 64) if memory(model, work, b) <= room * share or b == 1)
    chosen = min(chosen, max(1, work.samples))
    forward, looking = seconds(model, work, device, chosen)
    batches = math.ceil(work.samples / chosen)
    workers = max(1, devices // share)
    # Layers on several devices work one after another, so a worker is as fast as one device.
    total = (forward + looking) * math.ceil(batches / workers)
    one = cost(model, work, itemsize)
    recorded = bytes_per_step(model.layers, model.heads, model.kv_heads, work.length) * work.steps
    return Estimate(
        model=model,
        work=work,
        device=device,
        devices=devices,
        devices_per_worker=share,
        batch=chosen,
        hours=total / 3600,
        device_hours=(forward + looking) * batches * share / 3600,
        looking_share=looking / (forward + looking),
        memory_per_device=memory(model, work, chosen) / share,
        host_memory=chosen * recorded * 2.0 if work.trace else 0.0,
        storage=one.stored * work.samples,
        stored_per_sample=one.stored,
        operations=(one.forward + one.looking) * work.samples,
    )


def parse_devices(text: str) -> tuple[int, Device]:
    """A number and a kind.

    >>> parse_devices("8xA100")[0], parse_devices("H100")[1].memory
    (8, 80)
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?([\w-]+)", text.strip())
    name = match[2].lower().replace("-80", "").replace("gb", "") if match else ""
    if match is None or name not in DEVICES or match[1] == "0":
        known = ", ".join(device.name for device in DEVICES.values())
        raise FloatLensError(
            f"--gpus {text!r} is not understood; write a number and a kind, such as 8xA100, of {known}"
        )
    return int(match[1] or 1), DEVICES[name]


def assumptions(found: Estimate) -> list[str]:
    """Everything that the numbers rest on, in sentences."""
    device, model = found.device, found.model
    peak = device.half if model.itemsize == 2 else device.single
    kind = "16-bit" if model.itemsize == 2 else "float32"
    return [
        f"{device.name}: {peak:g} TFLOP/s {kind}, {device.single:g} TFLOP/s float32, {device.memory:g} GB, "
        f"{device.bandwidth:g} GB/s (peak, dense)",
        f"forward passes reach {COMPUTE:.0%} of the peak, looking {LOOKING:.0%} of the float32 peak, reading of weights "
        f"and cache {READING:.0%} of the bandwidth",
        f"every sample has {found.work.prompt} prompt tokens (the mean of those looked at) and {found.work.new} new ones "
        f"in {found.work.steps} steps",
        f"looking takes {ELEMENTWISE} operations on each score beside its product; all layers, heads and steps are kept",
        f"{ROOM:.0%} of a device's memory is used; the batch is {found.batch}",
        "a model on several devices keeps one of them busy at a time; loading, starting and drawing are left out",
        "storage is before compression; traces keep their default statistics, no matrices",
    ]


def as_dict(found: Estimate) -> dict[str, Any]:
    """The numbers, for --json."""
    return {
        "model": found.model.name,
        "parameters": found.model.parameters,
        "samples": found.work.samples,
        "prompt_tokens": found.work.prompt,
        "new_tokens": found.work.new,
        "steps": found.work.steps,
        "gpus": found.devices,
        "gpu": found.device.name,
        "gpus_per_worker": found.devices_per_worker,
        "workers": found.workers,
        "batch_size": found.batch,
        "hours": found.hours,
        "gpu_hours": found.device_hours,
        "looking_share": found.looking_share,
        "memory_per_gpu": found.memory_per_device,
        "host_memory_per_worker": found.host_memory,
        "storage": found.storage,
        "stored_per_sample": found.stored_per_sample,
        "operations": found.operations,
        "assumptions": assumptions(found),
    }
