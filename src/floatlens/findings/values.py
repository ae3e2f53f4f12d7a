"""Value sinks: whether anchors have small values.

A position that receives much attention and has a small value adds little: attention is parked there (arXiv 2410.10781 for
autoregressive models, 2601.19657 for diffusion models).
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from floatlens.anchors import find_anchors
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import mean_over, profile
from floatlens.trace.trace import Trace


class Values(Finding):
    name = "values"
    needs_means = ("received", "value_norm")

    def measure_one(self, trace: Trace, *, rule: str = "sigma(3)") -> xr.Dataset:
        """Measure the value norms of anchors and of other positions, mean over heads and the steps with anchors."""
        a = profile(trace)
        norm_SLT = trace.head_mean("value_norm").transpose("step", "layer", "position").values
        anchors_SLT, there_SLT = find_anchors(a.values, rule, trace.attention_kind), np.isfinite(a.values + norm_SLT)
        anchors, others = (
            mean_over(np.where(group & there_SLT, norm_SLT, np.nan), -1) for group in (anchors_SLT, ~anchors_SLT)
        )
        both = np.isfinite(anchors + others)
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = {"anchors": anchors, "others": others, "smaller": np.log2(others / anchors)}
        means = {name: ("layer", mean_over(np.where(both, values, np.nan), 0)) for name, values in numbers.items()}
        return xr.Dataset(means, coords={"layer": a["layer"]})


values = register_finding(Values())
measure, figure, claims = values.measure, values.figure, values.claims
