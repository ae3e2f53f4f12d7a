"""Step similarity: how similar a head's attention is from one step to the next.

arXiv 2509.24014 finds that it hardly changes: it computes a sparse pattern per head once, after some steps with full
attention, and uses it at all later steps. There are two numbers per head: how much of each query's attention stays from one
step to the next (recorded as `step_similarity`), and how much of the received attention of the first quarter of the steps
stays in the last quarter. A head may change little at each step and still end elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.findings.draw import maps
from floatlens.findings.finding import Finding, register_claim, register_finding
from floatlens.findings.samples import mean, mean_over, over_layers, require
from floatlens.findings.spelling import percent
from floatlens.findings.verdict import Outcome, mean_of
from floatlens.trace.summarise import quarters_overlap
from floatlens.trace.trace import Trace


class Similarity(Finding):
    name = "similarity"
    views = ("heads", "layers")
    records = ("step_similarity",)

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure the similarity of each head's attention between steps."""
        received = "received_lasting" if trace.is_summary else "received"
        require(trace, received, "step_similarity", finding=self.name)
        overlap_SLH = trace.data["step_similarity"].values.astype(np.float64)
        lasting_LH = trace.data[received].values
        if not trace.is_summary:
            lasting_LH = quarters_overlap(lasting_LH)
        by_step = mean_over(overlap_SLH, (1, 2))
        third = max(1, len(by_step) // 3)
        return xr.Dataset(
            {
                "overlap": ("layer", mean_over(overlap_SLH, (0, 2))),
                "overlap_by_head": (("layer", "head"), mean_over(overlap_SLH, 0)),
                "early": mean(by_step[:third]),
                "late": mean(by_step[-third:]),
                "lasting": ("layer", lasting_LH.mean(axis=1)),
                "lasting_by_head": (("layer", "head"), lasting_LH),
            },
            coords={"layer": trace.data["layer"], "head": trace.data["head"]},
        )

    def draw_heads(self, measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
        names = {"overlap_by_head": "step to step", "lasting_by_head": "first to last quarter"}
        note = "Mean over samples and steps"
        return maps(measured, names, "head", "attention that stays", note=note, backend=backend)

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        names = {"step to step": "overlap", "first third": "early", "last third": "late"}
        names["first to last quarter"] = "lasting"
        return {label: mean(part[name].values) for label, name in names.items()}

    def sentence(self, model: str, part: xr.Dataset) -> str:
        step, lasting = mean(part["overlap"].values), mean_over(part["lasting_by_head"].values, 0)
        text = f"In {model} "
        if np.isfinite(step):
            text += f"{percent(step)} of a query's attention stays from one step to the next; "
        return (
            f"{text}from the first to the last quarter of the steps, {percent(float(np.nanmin(lasting)))} of the received "
            f"attention stays in the head that moves most and {percent(float(np.nanmax(lasting)))} in the one that moves "
            f"least."
        )


@register_claim("similarity.steps")
def alike(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {"from the first to the last quarter of the steps": over_layers(measured, "lasting")}
    return mean_of(measured, over_layers(measured, "overlap"), kind="mdm", model=mdm, beside=beside)


@register_claim("similarity.settles")
def settles(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    early, late = measured["early"].values, measured["late"].values
    return mean_of(measured, late - early, kind="mdm", model=mdm, beside={"first third": early, "last third": late})


similarity = register_finding(Similarity())
measure, figure, claims = similarity.measure, similarity.figure, similarity.claims
