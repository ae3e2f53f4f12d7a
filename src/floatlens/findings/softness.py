"""Sink softness: whether there is one lasting sink, or many that come and go.

Sinks of diffusion models move (arXiv 2510.15731) and vary in position over the steps (arXiv 2602.17664). The soft sink score
of a position is the sigmoid of its standardised attention, averaged over steps. To compare an MDM with an ARM, score and
variance are those of the rows that write, as in the finding drift: the mean over all rows so far of an ARM could not move.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from floatlens.anchors import baseline
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, mean_over, profile, writing_profile
from floatlens.trace.trace import Trace


class Softness(Finding):
    name = "softness"
    needs = ("received_writing",)
    needs_means = ("received",)

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure how much the most attended position moves, and how long a sink lasts."""
        a = profile(trace)
        writing_SLT = writing_profile(trace)
        above_SLT = a.values - baseline(a.values, trace.attention_kind)
        top_SL = top(above_SLT)
        commonest_L = np.array([np.bincount(column).max() for column in top_SL.T])
        written_SL = top(writing_SLT)
        std_L = np.std(written_SL, axis=0) if len(written_SL) > 1 else np.full(written_SL.shape[1:], np.nan)
        return xr.Dataset(
            {
                "moves": ("layer", 1 - commonest_L / len(top_SL)),
                "spread": ("layer", std_L / writing_SLT.shape[-1]),
                "lasting": ("layer", soft_scores(writing_SLT).max(axis=-1)),
                "sink": ("layer", 100 * above_SLT[..., 0].mean(axis=0)),
            },
            coords={"layer": a["layer"]},
        )


def top(a: Array) -> Array:
    """Position with the most attention along the last axis."""
    return np.where(np.isfinite(a), a, -np.inf).argmax(axis=-1)


def soft_scores(a_SLT: Array) -> Array:
    """Sigmoid of the attention standardised over the positions of a step, mean over steps; 0 for positions to come."""
    a = np.asarray(a_SLT, np.float64)
    middle = mean_over(a, -1)[..., None]
    std = np.sqrt(mean_over((a - middle) ** 2, -1))[..., None]
    z = np.divide(a - middle, std, out=np.zeros_like(a), where=std > 0)
    score = np.where(np.isfinite(a), 1 / (1 + np.exp(-z)), 0.0)
    return score.mean(axis=0) if len(a) else np.full(a.shape[1:], np.nan)


softness = register_finding(Softness())
measure, figure, claims = softness.measure, softness.figure, softness.claims
