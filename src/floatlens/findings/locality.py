"""Locality: how far away queries attend, and whether distant masks receive attention.

arXiv 2511.21338 finds that masked diffusion models favour nearby context, and that many appended masks distract them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from floatlens.findings.finding import Finding, register_claim, register_finding
from floatlens.findings.samples import Array, mean, mean_over, over_layers
from floatlens.findings.spelling import percent
from floatlens.findings.tokens import mask_ids
from floatlens.findings.verdict import Outcome, mean_of
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
                "within": ("reach", mean_over(near_SLHR, (0, 1, 2))),
                "uniform": ("reach", mean_over(even_SLHR, (0, 1, 2))),
                "far_masks": ("layer", mean_over(far_SLH, (0, 2))),
                "masks": ("reach", mean_over(masks_SLHR, (0, 1, 2))),
            },
            coords={"layer": trace.data["layer"], "reach": reach},
        )

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        return {
            "mean distance": mean(part["distance"].values),
            f"within {NEAR}": mean(part["within"].sel(reach=NEAR).values),
            "uniform": mean(part["uniform"].sel(reach=NEAR).values),
            "masks to far masks": mean(part["far_masks"].values),
        }

    def sentence(self, model: str, part: xr.Dataset) -> str:
        within, even = (mean(part[name].sel(reach=NEAR).values) for name in ("within", "uniform"))
        far = mean(part["far_masks"].values)
        return (
            f"{model} spends {percent(within)} of its attention within {NEAR} positions of the query; uniform attention "
            f"would spend {percent(even)}."
            + (f" Its masks spend {percent(far)} on masks more than {FAR} away." if np.isfinite(far) else "")
        )


def has_far_masks(masked_ST: Array, far: int) -> Array:
    """Steps at which two masks are more than `far` positions apart."""
    reach = [np.ptp(np.flatnonzero(row)) if row.any() else 0 for row in masked_ST]
    return np.array(reach) > far


@register_claim("locality.near")
def attends_near(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {"mean distance, positions": over_layers(measured, "distance")}
    return mean_of(measured, over_layers(measured, "near"), kind="mdm", model=mdm, beside=beside)


@register_claim("locality.masks")
def attends_far_masks(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    what = "samples with masks that far apart"
    return mean_of(measured, over_layers(measured, "far_masks"), kind="mdm", model=mdm, what=what)


locality = register_finding(Locality())
measure, figure, claims = locality.measure, locality.figure, locality.claims
