"""Locality: how far away queries attend, and whether distant masks receive attention.

arXiv 2511.21338 finds that masked diffusion models favour nearby context, and that many appended masks distract them.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, mean_over
from floatlens.findings.tokens import mask_ids
from floatlens.trace.trace import Trace

NEAR, FAR = 8, 16  # positions


class Locality(Finding):
    name = "locality"
    views = ("reach", "layers")
    needs = ("distance", "near", "near_uniform", "mask_attention")
    records = ("locality",)

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure the distance between queries and the keys they attend to, mean over heads and steps."""
        distance_SLH, near_SLHR, even_SLHR, masks_SLHR = (trace.data[name].values.astype(float) for name in self.needs)
        reach = [int(n) for n in trace.data["reach"].values]
        far_S = has_far_masks(np.isin(trace.data["tokens"].values, mask_ids(trace)), FAR)
        far_SLH = np.where(far_S[:, None, None], masks_SLHR[..., reach.index(FAR)], np.nan)
        return xr.Dataset(
            {
                "distance": ("layer", mean_over(distance_SLH, (0, 2))),
                "near": ("layer", mean_over(near_SLHR - even_SLHR, (0, 2))[:, reach.index(NEAR)]),
                "near_share": mean_over(near_SLHR[..., reach.index(NEAR)], (0, 1, 2)),
                "near_uniform": mean_over(even_SLHR[..., reach.index(NEAR)], (0, 1, 2)),
                "within": ("reach", mean_over(near_SLHR, (0, 1, 2))),
                "uniform": ("reach", mean_over(even_SLHR, (0, 1, 2))),
                "far_masks": ("layer", mean_over(far_SLH, (0, 2))),
                "masks": ("reach", mean_over(masks_SLHR, (0, 1, 2))),
            },
            coords={"layer": trace.data["layer"], "reach": reach},
        )


def has_far_masks(masked_ST: Array, far: int) -> Array:
    """Steps at which two masks are more than `far` positions apart."""
    reach = [np.ptp(np.flatnonzero(row)) if row.any() else 0 for row in masked_ST]
    return np.array(reach) > far


locality = register_finding(Locality())
measure, figure, claims = locality.measure, locality.figure, locality.claims
