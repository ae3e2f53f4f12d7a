"""Estimate time, memory and storage of a run on given GPUs from the model's shape, and list all assumptions.

A step of a masked diffusion model (MDM) is a forward pass over the whole sequence. An autoregressive model (ARM) passes
over the prompt once and then over one token per step, reading all its weights each time. Observation computes the scores
of all queries and keys a second time in every layer, in float32.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from floatlens.attention.group import ROOM as GROUP_BYTES
from floatlens.attention.tile import TILE
from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import Checkpoint
from floatlens.models.describe import bytes_per_step, shape

FORWARD_SHARE = 0.4  # share of the peak that forward passes reach
OBSERVATION_SHARE = 0.25  # share of the float32 peak that observation reaches, since it computes many exponentials
READING_SHARE = 0.6  # share of the bandwidth that reading weights and caches reaches
ELEMENTWISE = 12  # operations per score besides its product: scale, mask, exponential, sums
MEMORY_SHARE = 0.9  # share of a device's memory that is used
ROW_BYTES = 2000  # size of an answer's row and its result file
REGIONS = 16  # regions of a prompt: their sums of attention are kept per head while a layer is observed


@dataclass(frozen=True)
class DeviceSpec:
    """Peak numbers of a device: dense 16-bit and float32 TFLOP/s, GB, GB/s, as published by its manufacturer, rounded."""

    name: str
    half: float
    single: float
    memory: float
    bandwidth: float


DEVICES = {
    device.name.lower(): device
    for device in (
        DeviceSpec("T4", 65, 8.1, 16, 320),
        DeviceSpec("V100", 125, 15.7, 32, 900),
        DeviceSpec("A100-40", 312, 19.5, 40, 1555),
        DeviceSpec("A100", 312, 19.5, 80, 2039),
        DeviceSpec("A6000", 155, 38.7, 48, 768),
        DeviceSpec("L40S", 362, 91.6, 48, 864),
        DeviceSpec("RTX3090", 71, 35.6, 24, 936),
        DeviceSpec("RTX4090", 165, 82.6, 24, 1008),
        DeviceSpec("H100", 989, 67, 80, 3350),
        DeviceSpec("H200", 989, 67, 141, 4800),
        DeviceSpec("B200", 2250, 80, 180, 8000),
        DeviceSpec("MI300X", 1307, 163, 192, 5300),
        # One core of a server processor in float32; 16-bit numbers are not faster there.
        DeviceSpec("CPU", 0.06, 0.06, 8, 10),
    )
}


@dataclass(frozen=True)
class Workload:
    """Number of samples, prompt tokens and new tokens per sample, steps, and whether traces are recorded."""

    samples: int
    prompt: int
    new: int
    steps: int
    trace: bool = True

    @property
    def length(self) -> int:
        return self.prompt + self.new


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that the estimate uses.

    Parameters
    ----------
    cached: whether a step extends a cache of keys and values, as in an ARM.
    active: parameters in matrix products per token, without the head.
    head: parameters of the output head.
    itemsize: bytes per parameter.
    """

    name: str
    cached: bool
    parameters: int
    active: int
    head: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    itemsize: int


def measure_model(checkpoint: Checkpoint, dtype: str = "bfloat16") -> ModelSize:
    """Count the parameters on the meta device; no weights are read."""
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
    return ModelSize(
        name=checkpoint.name,
        cached=checkpoint.family.cached,
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


def forward_flops(model: ModelSize, queries: int, keys: int, logits: int) -> float:
    """Operations of one forward pass over one sequence: `queries` tokens that see `keys`, and logits for some of them.

    A product of a matrix and a vector takes two operations per parameter; attention has two products of queries and keys.
    """
    attention = 4 * model.layers * model.heads * model.head_dim * queries * keys
    return 2.0 * model.active * queries + attention + 2.0 * model.head * logits


def observation_flops(model: ModelSize, queries: int, keys: int) -> float:
    """Operations of observing one forward pass: the scores again, and `ELEMENTWISE` operations on each."""
    return float(model.layers * model.heads * queries * keys * (2 * model.head_dim + ELEMENTWISE))


@dataclass(frozen=True)
class SampleCost:
    """Cost of one sample: operations of the forward passes and of observation, and bytes stored."""

    forward: float
    observation: float
    stored: float


def cost(model: ModelSize, work: Workload, itemsize: int = 4) -> SampleCost:
    """The cost of one sample."""
    T, P = work.length, work.prompt
    if not model.cached:
        forward = work.steps * forward_flops(model, T, T, work.new)
        observation = work.steps * observation_flops(model, T, T)
    else:
        # The upper half of a causal pass over the prompt is counted too, although kernels skip most of it.
        forward = forward_flops(model, P, P, 1) + sum(forward_flops(model, 1, P + i, 1) for i in range(1, work.new))
        observation = observation_flops(model, P, P) + sum(
            observation_flops(model, 1, P + i) for i in range(1, work.new)
        )
    kept = work.steps * bytes_per_step(model.layers, model.heads, model.kv_heads, T, itemsize) if work.trace else 0
    return SampleCost(forward, observation if work.trace else 0.0, kept + ROW_BYTES)


def seconds(model: ModelSize, work: Workload, device: DeviceSpec, batch: int) -> tuple[float, float]:
    """Seconds of forward passes and of observation, for one batch on one device.

    A pass takes as long as its arithmetic or its reading of weights and cache, whichever is longer.
    """
    one = cost(model, work)
    peak = (device.half if model.itemsize == 2 else device.single) * 1e12 * FORWARD_SHARE
    bandwidth = device.bandwidth * 1e9 * READING_SHARE
    weights = model.parameters * model.itemsize
    passes = work.new if model.cached else work.steps
    cache = batch * cache_bytes(model, work.length) if model.cached else 0
    forward = max(batch * one.forward / peak, passes * (weights + cache) / bandwidth)
    return forward, batch * one.observation / (device.single * 1e12 * OBSERVATION_SHARE)


def cache_bytes(model: ModelSize, length: int) -> int:
    """Bytes of the keys and values of one sequence."""
    return 2 * model.layers * model.kv_heads * model.head_dim * length * model.itemsize


def observation_memory(model: ModelSize, length: int, batch: int) -> float:
    """Bytes that observation adds to a forward pass over `length` positions; it grows linearly with the length.

    Layers are observed in groups whose queries, keys and values take at most `GROUP_BYTES`. Each group needs float32
    copies of its queries and keys and two blocks of attention weights; a block has `TILE` numbers, or one query's row
    for the heads that share a key where that is more. The statistics of all layers are kept until the end of the pass.
    """
    H, K, D, positions = model.heads, model.kv_heads, model.head_dim, batch * length
    layer_bytes = positions * (H + 2 * K) * D * model.itemsize
    layers = max(1, min(model.layers, GROUP_BYTES // max(1, layer_bytes)))
    alone = positions * H * D * 4 if model.itemsize < 4 else 0
    copies = layers * positions * (H + 2 * K) * D * 4 if layers > 1 else alone
    products = layers * positions * (H + K) * (D + 2) * 4
    blocks = 2 * max(TILE, length * H // max(1, K)) * 4
    sums = layers * positions * H * REGIONS * 4
    kept = batch * bytes_per_step(model.layers, H, K, length)
    return float(copies + products + blocks + sums + kept)


def memory(model: ModelSize, work: Workload, batch: int) -> float:
    """Bytes on the device: weights, cache, activations of a layer, logits, and the memory of observation."""
    T = work.length
    activations = batch * T * (6 * model.width + 4 * model.active / max(1, model.layers) / max(1, model.width))
    logits = batch * (1 if model.cached else work.new) * model.vocabulary * 4 * 3
    tracing = observation_memory(model, T, batch) if work.trace else 0
    cache = batch * cache_bytes(model, T) if model.cached else 0
    return model.parameters * model.itemsize + cache + activations * model.itemsize + logits + tracing


@dataclass(frozen=True)
class RunEstimate:
    """The estimate of a run on a number of devices."""

    model: ModelSize
    work: Workload
    device: DeviceSpec
    devices: int
    devices_per_worker: int
    batch: int
    hours: float
    device_hours: float
    observation_share: float
    memory_per_device: float
    host_memory: float
    storage: float
    stored_per_sample: float
    operations: float

    @property
    def workers(self) -> int:
        return self.devices // self.devices_per_worker


def estimate(
    model: ModelSize, work: Workload, device: DeviceSpec, devices: int, batch: int | None = None, itemsize: int = 4
) -> RunEstimate:
    """Estimate a run; by default `batch` is the largest power of two that fits, up to 64."""
    room = device.memory * 1e9 * MEMORY_SHARE
    least = memory(model, work, batch or 1)
    share = math.ceil(least / room)
    if share > devices:
        raise FloatLensError(
            f"{model.name} needs {least / 1e9:.0f} GB, but {devices} x {device.name} have {devices * device.memory:.0f}; "
            "use more or larger --gpus, or a smaller --batch-size"
        )
    chosen = batch or max(b for b in (1, 2, 4, 8, 16, 32, 64) if memory(model, work, b) <= room * share or b == 1)
    chosen = min(chosen, max(1, work.samples))
    forward, observation = seconds(model, work, device, chosen)
    batches = math.ceil(work.samples / chosen)
    workers = max(1, devices // share)
    # Layers on several devices work one after another, so a worker is as fast as one device.
    total = (forward + observation) * math.ceil(batches / workers)
    one = cost(model, work, itemsize)
    recorded = bytes_per_step(model.layers, model.heads, model.kv_heads, work.length) * work.steps
    return RunEstimate(
        model=model,
        work=work,
        device=device,
        devices=devices,
        devices_per_worker=share,
        batch=chosen,
        hours=total / 3600,
        device_hours=(forward + observation) * batches * share / 3600,
        observation_share=observation / (forward + observation),
        memory_per_device=memory(model, work, chosen) / share,
        host_memory=chosen * recorded * 2.0 if work.trace else 0.0,
        storage=one.stored * work.samples,
        stored_per_sample=one.stored,
        operations=(one.forward + one.observation) * work.samples,
    )


def parse_devices(text: str) -> tuple[int, DeviceSpec]:
    """The number and kind of devices in a text such as 8xA100.

    >>> parse_devices("8xA100")[0], parse_devices("H100")[1].memory
    (8, 80)
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX*]\s*)?([\w-]+)", text.strip())
    name = match[2].lower().replace("-80", "").replace("gb", "") if match else ""
    if match is None or name not in DEVICES or match[1] == "0":
        known = ", ".join(device.name for device in DEVICES.values())
        raise FloatLensError(
            f"--gpus {text!r} is not understood; write a number and a kind, such as 8xA100; the kinds are {known}"
        )
    return int(match[1] or 1), DEVICES[name]


def assumptions(found: RunEstimate) -> list[str]:
    """The assumptions behind an estimate, one sentence each."""
    device, model = found.device, found.model
    peak = device.half if model.itemsize == 2 else device.single
    kind = "16-bit" if model.itemsize == 2 else "float32"
    return [
        f"{device.name}: {peak:g} TFLOP/s {kind}, {device.single:g} TFLOP/s float32, {device.memory:g} GB, "
        f"{device.bandwidth:g} GB/s (peak, dense)",
        f"forward passes reach {FORWARD_SHARE:.0%} of the peak, observation {OBSERVATION_SHARE:.0%} of the float32 peak, "
        f"reading weights and cache {READING_SHARE:.0%} of the bandwidth",
        f"every sample has {found.work.prompt} prompt tokens (the mean of the first prompts) and {found.work.new} "
        f"new ones in {found.work.steps} steps",
        f"observation takes {ELEMENTWISE} operations per score besides its product; every layer, head and step is recorded",
        f"{MEMORY_SHARE:.0%} of a device's memory is used; the batch is {found.batch}",
        "a model on several devices uses one of them at a time; loading, starting and drawing are not counted",
        "storage is before compression; traces record their default statistics, no matrices",
    ]


def to_dict(found: RunEstimate) -> dict[str, Any]:
    """The numbers for --json."""
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
        "observation_share": found.observation_share,
        "memory_per_gpu": found.memory_per_device,
        "host_memory_per_worker": found.host_memory,
        "storage": found.storage,
        "stored_per_sample": found.stored_per_sample,
        "operations": found.operations,
        "assumptions": assumptions(found),
    }
