"""Step similarity: how similar a head's attention is from one step to the next.

arXiv 2509.24014 finds that it hardly changes: it computes a sparse pattern per head once, after some steps with full
attention, and uses it at all later steps. There are two numbers per head: how much of each query's attention stays from one
step to the next (recorded as `step_similarity`), and how much of the received attention of the first quarter of the steps
stays in the last quarter. A head may change little at each step and still end elsewhere.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.findings.draw import maps
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import mean, mean_over, require
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
                "settled": mean(by_step[-third:]) - mean(by_step[:third]),
                "lasting": ("layer", lasting_LH.mean(axis=1)),
                "lasting_by_head": (("layer", "head"), lasting_LH),
            },
            coords={"layer": trace.data["layer"], "head": trace.data["head"]},
        )

    def draw_heads(self, measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
        names = {"overlap_by_head": "step to step", "lasting_by_head": "first to last quarter"}
        note = "Mean over samples and steps"
        return maps(measured, names, "head", "attention that stays", note=note, backend=backend)


similarity = register_finding(Similarity())
measure, figure, claims = similarity.measure, similarity.figure, similarity.claims
