"""Traces with planted properties, so that the correct result of a finding is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from floatlens.attention.statistics.locality import REACH
from floatlens.findings.finding import FINDINGS
from floatlens.trace.trace import Trace

TRACED = [name for name in FINDINGS.names() if FINDINGS[name].reads == "traces"]

WORDS = ["the", "of", "and", "in", "was", "born", "by", "city", "river", "poet", "wrote", "engine", "Ada", "Lovelace"]
WORDS += [
    "Rome",
    "Paris",
    "1815",
    "mother",
    "mountain",
    "painter",
    "from",
    "machine",
    "notes",
    "Byron",
    "42",
    "library",
]
BOS, USER, ASSISTANT, NEWLINE, MASK = "<|bos|>", "<|user|>", "<|assistant|>", "\n", "<|mask|>"


def prompt(rng: np.random.Generator, docs: int, words: int, gold: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Token strings and regions of a made-up prompt in the shape of the default template."""
    tokens = [BOS, USER, NEWLINE]
    regions = [{"name": "bos", "start": 0, "end": 1}]

    def region(name: str, parts: list[str]) -> None:
        regions.append({"name": name, "start": len(tokens), "end": len(tokens) + len(parts)})
        tokens.extend(parts)

    def text() -> list[str]:
        return [" " + str(w) for w in rng.choice(WORDS, words)] + ["."]

    region("instruction", ["Answer", " the", " question", " from", " the", " passages", "."])
    tokens.append("\n\n")
    for n in range(docs):
        tokens.extend(["[", str(n + 1), "]"])
        region(f"doc{n + 1}", [*text()[:-3], " in", " London", "."] if n + 1 == gold else text())
        tokens.append(NEWLINE)
    tokens.extend([NEWLINE, "Question", ":"])
    region("query", [" Where", " was", " Ada", " Lovelace", " born", "?"])
    tokens.extend([NEWLINE, ASSISTANT, NEWLINE])
    return tokens, regions


def planted(
    *,
    model: str = "planted-mdm",
    kind: str = "mdm",
    steps: int = 12,
    layers: int = 6,
    heads: int = 4,
    kv_heads: int = 2,
    docs: int = 4,
    words: int = 8,
    gold: int = 2,
    anchors: Callable[[int, int], dict[int, float]] | None = None,
    copying: tuple[int, int] | None = None,
    gold_pull: float = 0.3,
    noise: float = 0.3,
    seed: int = 0,
    sample_id: str = "",
) -> Trace:
    """A trace of `steps` steps that write `steps` tokens.

    `anchors(step, layer)` gives the planted received attention by position; the rest is spread with `noise`.
    `copying` is the (layer, head) that copies from the gold document (`gold`, counted from 1) at every commit.
    """
    rng = np.random.default_rng(seed)
    strings, regions = prompt(rng, docs, words, gold)
    length = len(strings)
    total = length + steps
    answer = [" London", *([" city", " of"] * steps)][:steps]
    regions.append({"name": "answer", "start": length, "end": total})
    vocabulary = {s: i for i, s in enumerate(dict.fromkeys([*strings, *answer, MASK]))}
    final = np.array([vocabulary[s] for s in [*strings, *answer]])
    order = np.arange(steps) if kind == "arm" else rng.permutation(steps)
    committed_at = np.full(total, -1)
    committed_at[length:] = np.argsort(order)
    tokens = np.where(committed_at[None] < np.arange(steps)[:, None], final[None], vocabulary[MASK])
    if kind == "arm":
        tokens = np.where(np.arange(total)[None] < length + np.arange(steps)[:, None], final[None], -1)
    there = tokens >= 0
    plan = anchors or (lambda step, layer: {0: 0.5})
    received = received_attention(rng, plan, there, steps, layers, heads, noise, kind)
    writing = writing_rows(np.random.default_rng([seed, 1]), plan, there, layers, noise)
    data = xr.Dataset(
        {
            "tokens": (("step", "position"), tokens.astype(np.int64)),
            "committed_at": ("position", committed_at),
            "confidence": (("step", "position"), rng.random((steps, total)).astype(np.float32)),
            "final_tokens": ("position", final),
            "received": (("step", "layer", "head", "position"), received),
            "received_writing": (("step", "layer", "position"), writing),
            "entropy": (("step", "layer", "head"), rng.random((steps, layers, heads)).astype(np.float32)),
            **geometry(rng, received, there, heads, kv_heads),
            **evidence(rng, steps, layers, heads, copying),
            **on_request(np.random.default_rng([seed, 2]), received, there, tokens, final, committed_at, kind),
            "flow": (
                ("step", "layer", "region", "region_to"),
                flow(rng, regions, steps, layers, gold, gold_pull, kind),
            ),
        },
        coords={
            "step": np.arange(steps),
            "layer": np.arange(layers),
            "head": np.arange(heads),
            "position": np.arange(total),
            "reach": list(REACH),
            "region": [r["name"] for r in regions] + ["other"],
            "region_to": [r["name"] for r in regions] + ["other"],
        },
        attrs={
            "model": model,
            "family": "llada" if kind == "mdm" else "causal",
            "kind": kind,
            "attention": "bidirectional" if kind == "mdm" else "causal",
            "cached": int(kind == "arm"),
            "n_layers": layers,
            "prompt_length": length,
            "regions": json.dumps(regions),
            "gold": json.dumps([f"doc{gold}"]),
            "answers": json.dumps(["London"]),
            "vocabulary": json.dumps({str(i): s for s, i in vocabulary.items()}),
            "question": "Where was Ada Lovelace born?",
            "output": "London",
            "sample_id": sample_id or f"sample-{seed}",
        },
    )
    return Trace(data)


def received_attention(
    rng: np.random.Generator,
    plan: Callable[[int, int], dict[int, float]],
    there: np.ndarray,
    steps: int,
    layers: int,
    heads: int,
    noise: float,
    kind: str,
) -> np.ndarray:
    total = there.shape[1]
    found = np.full((steps, layers, heads, total), np.nan, np.float32)
    for layer in range(layers):
        for head in range(heads):
            if kind == "mdm":
                rows = [row(rng, plan(step, layer), total, total, noise) for step in range(steps)]
            else:  # causal: rows of the whole matrix once, then running column means
                length = int(there[0].sum())
                matrix = np.array(
                    [row(rng, plan(max(q - length, 0), layer), q + 1, total, noise) for q in range(total)]
                )
                rows = [matrix[: length + s].mean(axis=0) for s in range(steps)]
            found[:, layer, head] = rows
    return np.where(there[:, None, None], found, np.nan)


def writing_rows(
    rng: np.random.Generator,
    plan: Callable[[int, int], dict[int, float]],
    there: np.ndarray,
    layers: int,
    noise: float,
) -> np.ndarray:
    """The row that writes at each step: it attends to the planted anchors of the step, among the positions that exist."""
    steps, total = there.shape
    found = np.full((steps, layers, total), np.nan, np.float32)
    for step in range(steps):
        for layer in range(layers):
            found[step, layer] = row(rng, plan(step, layer), int(there[step].sum()), total, noise)
    return np.where(there[:, None], found, np.nan)


def row(rng: np.random.Generator, anchors: dict[int, float], seen: int, total: int, noise: float) -> np.ndarray:
    spread = 1.0 + noise * rng.random(seen)
    anchors = {p: m for p, m in anchors.items() if p < seen}
    spread[list(anchors)] = 0.0
    out = np.zeros(total)
    out[:seen] = spread / max(spread.sum(), 1e-9) * (1.0 - sum(anchors.values()))
    for position, mass in anchors.items():
        out[position] = mass
    return out / out.sum()


def geometry(
    rng: np.random.Generator, received: np.ndarray, there: np.ndarray, heads: int, kv_heads: int
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Anchors stand out by norm and angle in shallow layers, by angle alone in deep ones, and carry small values."""
    steps, layers, _, total = received.shape
    strength = np.nan_to_num(received / np.nanmax(received, axis=-1, keepdims=True))
    depth = np.linspace(0, 1, layers)[None, :, None, None]
    norm = 8 * (1 + 0.1 * rng.random(received.shape) + (1 - depth) * strength)
    cosine = 0.1 + 0.05 * rng.standard_normal(received.shape) + 0.5 * strength
    missing = np.where(there[:, None, None], 1.0, np.nan)
    dims = ("step", "layer", "head", "position")
    small = 1.5 - strength.reshape(steps, layers, kv_heads, heads // kv_heads, total).mean(axis=3)
    return {
        "qk": (dims, (norm * cosine * missing).astype(np.float32)),
        "qk_norm": (dims, (norm * missing).astype(np.float32)),
        "qk_cos": (dims, (cosine * missing).astype(np.float32)),
        "value_norm": (("step", "layer", "kv_head", "position"), (small * missing).astype(np.float32)),
    }


def evidence(
    rng: np.random.Generator, steps: int, layers: int, heads: int, copying: tuple[int, int] | None
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    hit = np.zeros((steps, layers, heads), np.float32)
    mass = 0.1 * rng.random((steps, layers, heads)).astype(np.float32)
    count = np.zeros(steps, np.int64)
    count[:3] = 1  # three of the committed tokens stand in the gold document
    if copying is not None:
        hit[:, copying[0], copying[1]] = 1.0
        mass[:, copying[0], copying[1]] = 0.9
    hit[count == 0], mass[count == 0] = np.nan, np.nan
    dims = ("step", "layer", "head")
    return {"evidence_hit": (dims, hit), "evidence_mass": (dims, mass), "evidence_count": (("step",), count)}


def on_request(
    rng: np.random.Generator,
    received: np.ndarray,
    there: np.ndarray,
    tokens: np.ndarray,
    final: np.ndarray,
    committed_at: np.ndarray,
    kind: str,
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Keys of attended positions change least; one channel leads and is largest at the most attended position.

    Attention is uniform, and the middle layer decides every token. A causal model with a cache computes nothing twice.
    """
    steps, layers, heads, total = received.shape
    prompt = int((committed_at < 0).sum())
    a = np.nan_to_num(received.mean(axis=2))
    places = ("step", "layer", "position")
    missing = np.where(there[:, None], 1.0, np.nan)
    change = (0.5 - 0.4 * a / a.max(axis=-1, keepdims=True)) * missing * np.linspace(0.2, 1, layers)[None, :, None]
    change[0] = np.nan
    if kind == "arm":
        change = np.full_like(change, np.nan)
    ratio = (10 + 5000 * (a == a.max(axis=-1, keepdims=True))) * missing
    found = {f"{name}_change": (places, change) for name in ("key", "value", "hidden")}
    found |= {"massive_ratio": (places, ratio), "hidden_norm": (places, ratio)}
    found |= {"massive_channel": (places, np.where(rng.random(ratio.shape) < 0.9, 7.0, 3.0) * missing)}
    alike = np.full((steps, layers, heads), 0.9)
    alike[0] = np.nan
    found |= {"step_similarity": (("step", "layer", "head"), alike if kind == "mdm" else alike * np.nan)}
    away = np.abs(np.arange(total)[:, None] - np.arange(total))
    within = np.array([(away <= reach).mean() for reach in REACH])
    even = np.broadcast_to(within, (steps, layers, heads, len(REACH)))
    masked = (
        np.where((tokens == tokens.max()).any(axis=1), 1.0, np.nan)[:, None, None, None] if kind == "mdm" else np.nan
    )
    bands = ("step", "layer", "head", "reach")
    found |= {
        "near": (bands, even + 0.01),
        "near_uniform": (bands, even),
        "mask_attention": (bands, (1 - even) * masked),
    }
    found |= {"distance": (("step", "layer", "head"), np.full((steps, layers, heads), away.mean()))}
    shift = int(kind == "arm")  # the row before the token writes it
    lens = np.full((steps, layers, total), np.nan)
    for position in range(prompt, total):
        computed = slice(committed_at[position], committed_at[position] + 1) if kind == "arm" else slice(None)
        lens[computed, :, position - shift] = final[position]
        lens[computed, : layers // 2, position - shift] = -1
        if kind == "mdm" and position % 2 and committed_at[position]:
            lens[0, :, position] = -1  # not at the first step, so that tokens differ in when they lead
    found |= {"lens_token": (places, lens)}
    return {name: (dims, np.asarray(values, np.float32)) for name, (dims, values) in found.items()}


def flow(
    rng: np.random.Generator,
    regions: list[dict[str, Any]],
    steps: int,
    layers: int,
    gold: int,
    pull: float,
    kind: str,
) -> np.ndarray:
    names = [r["name"] for r in regions] + ["other"]
    found = 0.5 + rng.random((steps, layers, len(names), len(names)))
    if pull:
        found[..., names.index(f"doc{gold}")] *= 1 + 10 * pull
    if kind == "arm":
        found = np.where(np.tri(len(names), dtype=bool), found, 0.0)
        found[..., names.index("other")] = 0.5
    found /= found.sum(axis=-1, keepdims=True)
    if kind == "arm":  # there is no answer yet when the first new token is made
        found[0, :, names.index("answer")] = np.nan
        found[0, :, :, names.index("answer")] = np.nan
    return found.astype(np.float32)


def wandering(
    start: int = 6, speed: int = 3, mass: float = 0.3, others: int = 2
) -> Callable[[int, int], dict[int, float]]:
    """Anchors that move right by `speed` positions per step, `others` of them behind the first."""

    def plan(step: int, layer: int) -> dict[int, float]:
        return {start + speed * step + 9 * k: mass / (k + 1) for k in range(others)}

    return plan
