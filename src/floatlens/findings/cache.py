"""Cache drift: which keys and values could be reused from one step to the next.

A bidirectional model computes all keys and values again at every step. Caches for diffusion models reuse those that hardly
change (arXiv 2510.14973, 2604.12056). The change of a position is the mean of the relative changes of its key and of its
value; positions that the model itself caches are not computed again and are not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, depths, halves, mean, mean_over, profile
from floatlens.stats import spearman
from floatlens.trace.trace import Trace

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
TOLERANCE = 0.1  # a cosine of about 0.995


class Cache(Finding):
    name = "cache"
    views = ("layers", "reuse")
    needs = ("key_change", "value_change", "hidden_change")
    needs_means = ("received",)
    records = ("cache_drift",)

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure how much keys, values and hidden states change from step to step, mean over steps and positions."""
        data = trace.data
        change = {name: data[name].values.astype(np.float64) for name in self.needs}
        key_SLT, value_SLT = change["key_change"], change["value_change"]
        mean_SLT, largest_SLT = (key_SLT + value_SLT) / 2, np.maximum(key_SLT, value_SLT)
        a_SLT = profile(trace).values
        shallow, deep = halves(mean_over(mean_SLT, (0, 2)), depths(trace, data["layer"].values))
        by_step = np.array([share_below(largest_SLT, tolerance) for tolerance in TOLERANCES])
        return xr.Dataset(
            {
                **{name: ("layer", mean_over(values, (0, 2))) for name, values in change.items()},
                "shallow_change": shallow,
                "deep_change": deep,
                "deeper": np.log2(deep / shallow) if deep > 0 and shallow > 0 else np.nan,
                "reused": mean(by_step[TOLERANCES.index(TOLERANCE)]),
                "reusable": (("threshold", "layer"), mean_over(by_step, 1)),
                "reusable_by_step": (("step", "layer"), by_step[TOLERANCES.index(TOLERANCE)]),
                "rank": ("layer", rank_of_attended(a_SLT, mean_SLT)),
                "attended": ("layer", attended_correlation(a_SLT, mean_SLT)),
            },
            coords={"layer": data["layer"], "step": data["step"], "threshold": list(TOLERANCES)},
        )

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        return {f"< {t:g}": mean(part["reusable"].sel(threshold=t).values) for t in TOLERANCES}


def share_below(change: Array, tolerance: float) -> Array:
    """Share of the values along the last axis that lie below a tolerance; NaN where there are none."""
    return mean_over(np.where(np.isfinite(change), change < tolerance, np.nan), -1)


def rank_of_attended(a_SLT: Array, change_SLT: Array) -> Array:
    """Share of positions that change more than the previous step's most attended one, ties half, minus 1/2 (layer)."""
    found = np.full(change_SLT.shape[:2], np.nan)
    for step, layer in np.ndindex(found.shape):
        now, before = change_SLT[step, layer], a_SLT[step - 1, layer]
        there = np.isfinite(now) & np.isfinite(before)
        if step and there.sum() > 1:
            top = np.flatnonzero(there)[before[there].argmax()]
            others = now[there & (np.arange(len(now)) != top)]
            found[step, layer] = (others > now[top]).mean() + (others == now[top]).mean() / 2 - 0.5
    return mean_over(found, 0)


def attended_correlation(a_SLT: Array, change_SLT: Array) -> Array:
    """Rank correlation over positions of attention at the previous step and change, mean over steps (layer)."""
    found = np.full(change_SLT.shape[:2], np.nan)
    for step, layer in np.ndindex(found.shape):
        if step and np.isfinite(change_SLT[step, layer]).any():
            found[step, layer] = spearman(a_SLT[step - 1, layer], change_SLT[step, layer])
    return mean_over(found, 0)


cache = register_finding(Cache())
measure, figure, claims = cache.measure, cache.figure, cache.claims
