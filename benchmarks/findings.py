"""The cost of each finding on one large trace: 300 positions, 32 steps, 32 layers, 32 heads.

    python -m benchmarks.findings

The aim is 5 seconds for all of them, and memory never above twice the trace, including the trace itself.
"""

from __future__ import annotations

import json
import time
import tracemalloc

import numpy as np
import xarray as xr

from floatlens.attention.statistics.locality import REACH
from floatlens.findings.finding import FINDINGS
from floatlens.trace.trace import Trace

TRACED = [name for name in FINDINGS.names() if FINDINGS[name].reads == "traces"]
STEPS, LAYERS, HEADS, POSITIONS, NEW = 32, 32, 32, 300, 32
BYTES = 2**20


def large_trace(diffusion: bool) -> Trace:
    """A trace of random numbers with the shape of an 8-billion model's."""
    rng = np.random.default_rng(0)
    prompt = POSITIONS - NEW
    spans = [("bos", 0, 1), ("instruction", 3, 12), *((f"doc{i + 1}", 16 + 48 * i, 60 + 48 * i) for i in range(5))]
    spans += [("query", 256, 264), ("answer", prompt, POSITIONS)]
    words = ["<|bos|>", "<|mask|>", "Ġthe", "ĠLondon", "Ġriver", "Ġof", "Ċ", ".", "Ġ1815", "ing"]
    final = rng.integers(2, len(words), POSITIONS)
    final[0] = 0
    final[16:60] = 3
    committed_at = np.where(np.arange(POSITIONS) < prompt, -1, np.arange(POSITIONS) - prompt)
    tokens = np.where(committed_at < np.arange(STEPS)[:, None], final, 1)
    wide, narrow = ("step", "layer", "head", "position"), ("step", "layer", "head")
    full = (STEPS, LAYERS, HEADS, POSITIONS)
    received = rng.exponential(1.0, full).astype(np.float32) ** 4
    there = np.ones((STEPS, POSITIONS), bool)
    if not diffusion:
        there = np.arange(POSITIONS) < prompt + np.arange(STEPS)[:, None]
        tokens = np.where(there, final, -1)
        received[~np.broadcast_to(there[:, None, None], full)] = np.nan
    received /= np.nansum(received, axis=-1, keepdims=True)
    names = [name for name, *_ in spans] + ["other"]
    flow = rng.random((STEPS, LAYERS, len(names), len(names)), dtype=np.float32)
    flow /= flow.sum(axis=-1, keepdims=True)
    norm = 1 + rng.random(full, dtype=np.float32)
    cosine = rng.random(full, dtype=np.float32)
    data = {
        "tokens": (("step", "position"), tokens),
        "final_tokens": ("position", final),
        "committed_at": ("position", committed_at),
        "confidence": (("step", "position"), rng.random((STEPS, POSITIONS), dtype=np.float32)),
        "received": (wide, received),
        "qk": (wide, norm * cosine),
        "qk_norm": (wide, norm),
        "qk_cos": (wide, cosine),
        "value_norm": (("step", "layer", "kv_head", "position"), rng.random(full, dtype=np.float32)),
        "evidence_hit": (narrow, rng.random(full[:3], dtype=np.float32)),
        "evidence_mass": (narrow, rng.random(full[:3], dtype=np.float32)),
        "evidence_count": ("step", np.ones(STEPS, int)),
        "query_mass": (narrow, rng.random(full[:3], dtype=np.float32)),
        "flow": (("step", "layer", "region", "region_to"), flow),
    }
    positions, reach = ("step", "layer", "position"), ("step", "layer", "head", "reach")
    data |= {"received_writing": (positions, received[:, :, 0])}
    for name in ("key_change", "value_change", "hidden_change"):
        data[name] = (positions, rng.random((STEPS, LAYERS, POSITIONS), dtype=np.float32))
    for name in ("hidden_norm", "massive_ratio", "massive_channel"):
        data[name] = (positions, rng.integers(1, 4096, (STEPS, LAYERS, POSITIONS)).astype(np.float32))
    written = np.where(np.arange(POSITIONS) < prompt, np.nan, final)
    data["lens_token"] = (positions, np.broadcast_to(written, (STEPS, LAYERS, POSITIONS)).astype(np.float32))
    for name in ("distance", "step_similarity"):
        data[name] = (narrow, rng.random(full[:3], dtype=np.float32))
    for name in ("near", "near_uniform", "mask_attention"):
        data[name] = (reach, rng.random((*full[:3], len(REACH)), dtype=np.float32))
    coords = {
        "step": range(STEPS),
        "layer": range(LAYERS),
        "head": range(HEADS),
        "position": range(POSITIONS),
        "region": names,
        "region_to": names,
        "reach": list(REACH),
    }
    attributes = {
        "model": "large-mdm" if diffusion else "large-arm",
        "kind": "mdm" if diffusion else "arm",
        "attention": "bidirectional" if diffusion else "causal",
        "cached": int(not diffusion),
        "prompt_length": prompt,
        "regions": json.dumps([{"name": n, "start": s, "end": e} for n, s, e in spans]),
        "gold": json.dumps(["doc1"]),
        "answers": json.dumps(["London"]),
        "vocabulary": json.dumps({str(i): word for i, word in enumerate(words)}),
        "sample_id": "one",
    }
    return Trace(xr.Dataset(data, coords=coords, attrs=attributes))


def main() -> None:
    for diffusion in (True, False):
        trace = large_trace(diffusion)
        size = trace.data.nbytes
        print(f"{trace.model}: {size / BYTES:.0f} MB")
        times = {}
        for name in TRACED:
            measure = FINDINGS[name].measure  # imported first, so that imports are not measured
            start = time.perf_counter(), time.process_time()
            measure(trace)
            times[name] = time.perf_counter() - start[0], time.process_time() - start[1]
        peaks = {}
        for name in TRACED:  # a second time, because measuring memory slows things down
            tracemalloc.start()
            FINDINGS[name].measure(trace)
            peaks[name] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        for name in TRACED:
            show(name, times[name], (size + peaks[name]) / size)
        show(
            "all",
            (sum(t[0] for t in times.values()), sum(t[1] for t in times.values())),
            1 + max(peaks.values()) / size,
        )


def show(name: str, seconds: tuple[float, float], memory: float) -> None:
    print(f"  {name:<11} {seconds[0]:6.2f} s ({seconds[1]:5.2f} s CPU time)   {memory:5.2f} × the trace")


if __name__ == "__main__":
    main()
