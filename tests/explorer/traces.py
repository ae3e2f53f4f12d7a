"""Traces for the tests of report and explorer: real ones of the bundled models, and planted ones of any size."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

import floatlens as fl

PASSAGES = (
    "The mill of Arden was built in 1807 by Tomas Vell.",
    "Tomas Vell was born in Karsk.",
    "The river of Karsk is called Onda.",
)


def unpacked(value: dict[str, Any]) -> np.ndarray:
    """An array of a film."""
    flat = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]).newbyteorder("<"))
    return flat.reshape(value["shape"]).astype(value["dtype"])


@cache
def tiny(model: str, matrices: tuple[str, ...] = ()) -> fl.Trace:
    """A bundled model on a question with three passages."""
    lens = fl.load(model)
    prompt = lens.prompt("Where was Tomas Vell born?", PASSAGES, gold=1, answers=["Karsk"])
    return lens.traces([prompt], sample_ids=["vell"], max_new_tokens=12, matrices=matrices)[0]


def planted(
    *,
    steps: int,
    layers: int,
    heads: int,
    positions: int,
    new: int = 12,
    kind: str = "mdm",
    words: Sequence[str] = (),
    seed: int = 0,
) -> fl.Trace:
    """A trace with an anchor that wanders to the right, one position a step; masks become `words` in a drawn order."""
    draws = np.random.default_rng(seed)
    P = positions - new
    a = draws.random((steps, layers, heads, positions)).astype(np.float32)
    for step in range(steps):
        a[step, ..., step % positions] += 40.0
    a /= a.sum(-1, keepdims=True)
    strings = ["<|bos|>", "<|eos|>", "<|mask|>", *(words or [f"Ġword{i}" for i in range(40)])]
    final = np.concatenate([[0], draws.integers(3, len(strings), positions - 3), [1, 1]])
    committed_at = np.full(positions, -1)
    order = draws.permutation(new)
    committed_at[P:] = np.minimum(order * steps // new, steps - 1)
    committed_at[-2:] = steps - 1
    tokens = np.where(committed_at[None] >= np.arange(steps)[:, None], 2, final[None])
    confidence = np.where(committed_at[None] >= np.arange(steps)[:, None], draws.random((steps, positions)), np.nan)
    data = xr.Dataset(
        {
            "tokens": (("step", "position"), tokens.astype(np.int64)),
            "committed_at": (("position",), committed_at),
            "final_tokens": (("position",), final),
            "confidence": (("step", "position"), confidence.astype(np.float32)),
            "received": (("step", "layer", "head", "position"), a),
        },
        coords={"step": np.arange(steps), "layer": np.arange(layers), "head": np.arange(heads)},
        attrs={
            "model": "planted",
            "family": "llada",
            "kind": kind,
            "attention": "bidirectional" if kind == "mdm" else "causal",
            "cached": int(kind == "arm"),
            "question": "Where does the anchor go?",
            "output": "to the right",
            "prompt_length": P,
            "sample_id": "planted",
            "vocabulary": json.dumps({str(i): text for i, text in enumerate(strings)}),
            "special_ids": "[0, 1, 2]",
            "regions": json.dumps(
                [
                    {"name": "bos", "start": 0, "end": 1},
                    {"name": "doc1", "start": 2, "end": P // 2},
                    {"name": "query", "start": P // 2, "end": P - 1},
                    {"name": "answer", "start": P, "end": positions},
                ]
            ),
            "gold": '["doc1"]',
        },
    )
    return fl.Trace(data)
