"""The paper's published numbers in the format of each finding's data, so that a figure can show both (`paper=True`).

Names of models end in "(paper)".
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import xarray as xr

from floatlens import paper
from floatlens.findings.definitions import normalise
from floatlens.paper import figures
from floatlens.stats import Array
from floatlens.trace.trace import Trace

NAMES = {"llada": "LLaDA (paper)", "dream": "Dream (paper)", "llama": "Llama (paper)", "qwen": "Qwen (paper)"}
RULE = "as published"  # position 0 of ARMs, the strongest position of MDMs: what the curves actually show


def absorption_rows() -> pd.DataFrame:
    """The published absorption curves, one row per model and layer."""
    frame = paper.absorption().to_dataframe().reset_index().dropna(subset="mean").replace({"model": NAMES})
    frame = frame.assign(rule=RULE, std=(frame["high"] - frame["low"]) / 2, anchors=1.0, n=0)
    return frame[["model", "rule", "layer", "mean", "std", "anchors", "n"]]


def head_rows() -> pd.DataFrame:
    """The published retrieval scores, one row per model, layer and head."""
    scores = {NAMES[model]: paper.retrieval_heads(model)["score"].to_series() for model in figures.RETRIEVAL_MODELS}
    frame = pd.concat(scores, names=["model"]).reset_index(name="mean").assign(number="hit", std=0.0, n=0)
    return frame[["model", "number", "layer", "head", "mean", "std", "n"]]


def flow_rows() -> pd.DataFrame:
    """The published rollouts of LLaDA, one row per gold position and pair of regions."""
    rolled = {gold: paper.rollout("llada", gold)["value"].to_series() for gold in figures.GOLD_POSITIONS}
    frame = pd.concat(rolled, names=["gold_position"]).reset_index(name="flow").assign(model=NAMES["llada"], n=0)
    return frame[["model", "gold_position", "region", "region_to", "flow", "n"]]


def knowledge_rows(score: str) -> pd.DataFrame:
    """The averages of Table 1, one row per model and condition; scores between 0 and 1."""
    average = paper.table1()["average"] / 100
    gain = average.sel(condition="open-book") - average.sel(condition="closed-book")
    frame = xr.Dataset({"mean": average, "gain": gain}).to_dataframe().reset_index().replace({"model": NAMES})
    frame = frame.assign(data="Table 1 of the paper", score=score, n=0)
    frame = frame.assign(low=frame["mean"], high=frame["mean"], gain_low=frame["gain"], gain_high=frame["gain"])
    numbers = ["mean", "low", "high", "n", "gain", "gain_low", "gain_high"]
    return frame[["model", "data", "condition", "score", *numbers]]


def temporal_trace() -> Trace:
    """The published temporal figures as a trace of 32 steps, layers 0 and 31, one head.

    Cells under the legend are filled evenly with what is left of their row, so that rows sum to 1.
    """
    order = paper.reveal_order()
    received = np.stack([_filled(paper.temporal(layer)["value"].values) for layer in figures.TEMPORAL_LAYERS], axis=1)
    steps, _, length = received.shape
    committed = np.where(np.arange(length) >= figures.PROMPT_LENGTH, order["revealed_at"].values - 1, -1)
    regions = [
        {"name": "query", "start": 0, "end": figures.PROMPT_LENGTH},
        {"name": "answer", "start": figures.PROMPT_LENGTH, "end": length},
    ]
    about = {"model": NAMES["llada"], "kind": "mdm", "attention": "bidirectional", "cached": 0, "n_layers": 32}
    about |= {"prompt_length": figures.PROMPT_LENGTH, "sample_id": "Figure of the paper"}
    about |= {"regions": json.dumps(regions), "vocabulary": json.dumps({"0": "", "1": "[mask]"})}
    return Trace(
        xr.Dataset(
            {
                "tokens": (("step", "position"), np.where(order["masked"].values, 1, 0)),
                "committed_at": ("position", committed),
                "confidence": (("step", "position"), np.full((steps, length), np.nan, np.float32)),
                "received": (("step", "layer", "head", "position"), received[:, :, None].astype(np.float32)),
            },
            coords={
                "step": np.arange(steps),
                "layer": list(figures.TEMPORAL_LAYERS),
                "head": [0],
                "position": np.arange(length),
            },
            attrs=about,
        )
    )


def hatched() -> Array:
    """The cells (step, layer, position) of the temporal figures that the authors hatched."""
    return np.stack([paper.temporal(layer)["anchor"].values for layer in figures.TEMPORAL_LAYERS], axis=1)


def _filled(value_ST: Array) -> Array:
    missing = np.isnan(value_ST)
    left = np.clip(1 - np.nansum(value_ST, axis=1, keepdims=True), 0.0, None)
    return normalise(np.where(missing, left / np.maximum(missing.sum(axis=1, keepdims=True), 1), value_ST))
