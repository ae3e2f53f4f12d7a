"""Massive activations: whether a few channels are far larger than the rest, and whether they occur at the anchors.

arXiv 2402.17762 found them in autoregressive models, at a few positions that then become attention sinks; arXiv 2605.06366
found one dominant channel in the early layers of LLaDA, over long ranges of positions. An activation is compared with the
median of its own position. The input of a layer is the output of the previous one, so states are compared with the anchors
of the next layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from floatlens.anchors import find_anchors
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, depths, halves, mean, mean_over, profile
from floatlens.trace.trace import Trace


class Massive(Finding):
    name = "massive"
    needs = ("hidden_norm", "massive_ratio", "massive_channel")
    needs_means = ("received",)
    records = ("massive",)

    def measure_one(self, trace: Trace, *, rule: str = "sigma(3)") -> xr.Dataset:
        """Measure the largest activations of hidden states, their channels and positions, mean over steps."""
        a = profile(trace)
        norm_SLT, ratio_SLT, channel_SLT = (trace.data[name].values.astype(np.float64) for name in self.needs)
        anchors = find_anchors(a.values, rule, trace.attention_kind)
        largest_SL = np.log10(np.nanmax(ratio_SLT, axis=-1))
        one_channel_L = mean_over(share_of_commonest(channel_SLT), 0)
        shallow, deep = halves(one_channel_L, depths(trace, a["layer"].values))
        return xr.Dataset(
            {
                "largest": ("layer", mean_over(largest_SL, 0)),
                "peak": float(largest_SL.max(axis=1).mean()),
                "norm_ratio": ("layer", mean_over(np.nanmax(norm_SLT, -1) / np.nanmedian(norm_SLT, -1), 0)),
                "one_channel": ("layer", one_channel_L),
                "one_channel_shallow": shallow,
                "one_channel_deep": deep,
                "channel": ("layer", [commonest(channel_SLT[:, layer]) for layer in range(channel_SLT.shape[1])]),
                "at_anchor": ("layer", at_next_anchors(ratio_SLT, anchors, np.isfinite(a.values))),
            },
            coords={"layer": a["layer"]},
        )

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        largest = mean_over(part["largest"].values, 0)
        layer = int(np.nanargmax(largest))
        return {
            "largest / median": 10 ** float(largest[layer]),
            "at layer": int(part["layer"].values[layer]),
            "channel there": int(commonest(part["channel"].values[:, layer])),
            "largest norm / median norm": float(np.nanmax(mean_over(part["norm_ratio"].values, 0))),
            "at an anchor, beyond chance": mean(part["at_anchor"].values),
        }


def commonest(channels: Array) -> float:
    """The number that occurs most often; NaN if there is none."""
    there, counts = np.unique(channels[np.isfinite(channels)], return_counts=True)
    return float(there[counts.argmax()]) if len(there) else float("nan")


def share_of_commonest(channel_SLT: Array) -> Array:
    """Share of positions that have the commonest number of their step and layer (step, layer)."""
    found = np.full(channel_SLT.shape[:2], np.nan)
    for index in np.ndindex(*found.shape):
        row = channel_SLT[index]
        there = row[np.isfinite(row)]
        if len(there):
            found[index] = (there == commonest(there)).mean()
    return found


def at_next_anchors(ratio_SLT: Array, anchors_SLT: Array, there_SLT: Array) -> Array:
    """Share of steps at which the largest position of a layer is an anchor of the next one, minus chance (layer).

    Chance is the share of positions that are anchors. NaN for the last layer.
    """
    top_SLT = np.nan_to_num(ratio_SLT, nan=-np.inf).argmax(axis=-1)[:, :-1, None]
    hit_SL = np.take_along_axis(anchors_SLT[:, 1:], top_SLT, axis=-1)[..., 0]
    chance_SL = anchors_SLT[:, 1:].sum(axis=-1) / there_SLT[:, 1:].sum(axis=-1)
    return np.append((hit_SL - chance_SL).mean(axis=0), np.nan)


massive = register_finding(Massive())
measure, figure, claims = massive.measure, massive.figure, massive.claims
