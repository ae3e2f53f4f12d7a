"""Locality: how far away queries attend, and whether distant masks receive attention.

arXiv 2511.21338 finds that masked diffusion models favour nearby context, and that many appended masks distract them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.findings import style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.numbers import layer_lines, lines
from floatlens.findings.outcome import Outcome, mean_of
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number, percent
from floatlens.findings.tokens import mask_ids
from floatlens.trace.trace import Trace

VIEWS = ("reach", "layers")
NEAR, FAR = 8, 16  # positions
LABELS = {"distance": "mean distance\n(positions)", "near": f"attention within {NEAR},\nbeyond uniform"}
CURVES = {
    "within": "attention within",
    "uniform": "the same,\nuniform attention",
    "masks": "of masks, on masks\nfurther away",
}


def measure(traces: Traces) -> xr.Dataset:
    """Measure the distance between queries and the keys they attend to, mean over heads and steps.

    | variable | dims | description |
    |---|---|---|
    | distance | sample, layer | distance in positions, weighted by attention |
    | near | sample, layer | share of attention within 8 positions, minus that of uniform attention |
    | within, uniform | sample, reach | share of attention within each reach, and of uniform attention; mean over layers |
    | far_masks | sample, layer | attention of masks on masks more than 16 positions away, over steps with such masks |
    | masks | sample, reach | the same beyond each reach, over all steps with masks; mean over layers |
    """
    return per_sample(traces, _measure_one, "locality")


def _measure_one(trace: Trace) -> xr.Dataset:
    require(trace, "distance", "near", "near_uniform", "mask_attention", finding="locality")
    data = trace.data
    near_SLHR, even_SLHR, masks_SLHR = (
        data[name].values.astype(np.float64) for name in ("near", "near_uniform", "mask_attention")
    )
    reach = [int(n) for n in data["reach"].values]
    far = has_far_masks(np.isin(data["tokens"].values, mask_ids(trace)), FAR)
    far_SLH = np.where(far[:, None, None], masks_SLHR[..., reach.index(FAR)], np.nan)
    beyond = mean_over(near_SLHR - even_SLHR, (0, 2))
    return xr.Dataset(
        {
            "distance": ("layer", mean_over(data["distance"].values.astype(float), (0, 2))),
            "near": ("layer", beyond[:, reach.index(NEAR)]),
            "within": ("reach", mean_over(near_SLHR, (0, 1, 2))),
            "uniform": ("reach", mean_over(even_SLHR, (0, 1, 2))),
            "far_masks": ("layer", mean_over(far_SLH, (0, 2))),
            "masks": ("reach", mean_over(masks_SLHR, (0, 1, 2))),
        },
        coords={"layer": data["layer"], "reach": reach},
    )


def has_far_masks(masked_ST: Array, far: int) -> Array:
    """Steps at which two masks are more than `far` positions apart.

    >>> has_far_masks(np.array([[True, False, True], [True, True, False]]), 1)
    array([ True, False])
    """
    found = []
    for row in masked_ST:
        positions = np.flatnonzero(row)
        found.append(bool(len(positions)) and bool(positions[-1] - positions[0] > far))
    return np.array(found, bool)


def figure(traces: Traces, *, view: str = "reach", backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw the share of attention within each reach (`reach`), or distance and neighbourhood by layer (`layers`)."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "locality") else measure(traces)
    if view == "layers":
        return layer_lines(measured, LABELS, backend=backend, zero=False, note="Mean over heads and steps")
    note = "Shares of attention, mean over heads, layers and steps"
    return lines(measured, CURVES, "reach", "positions", backend=backend, note=note)


@register_claim("locality.near")
def attends_near(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {"mean distance, positions": mean_over(measured["distance"].values, 1)}
    return mean_of(measured, mean_over(measured["near"].values, 1), kind="mdm", model=mdm, beside=beside)


@register_claim("locality.masks")
def attends_far_masks(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    shares = mean_over(measured["far_masks"].values, 1)
    return mean_of(measured, shares, kind="mdm", model=mdm, what="samples with masks that far apart")


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "mean distance": mean(part["distance"].values),
            f"within {NEAR}": mean(part["within"].sel(reach=NEAR).values),
            "uniform": mean(part["uniform"].sel(reach=NEAR).values),
            "masks to far masks": mean(part["far_masks"].values),
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Means over heads, layers and steps", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        within, even = (mean(part[name].sel(reach=NEAR).values) for name in ("within", "uniform"))
        far = mean(part["far_masks"].values)
        found.append(
            f"{model} ({kind}) spends {percent(within)} of its attention within {NEAR} positions of the query; uniform "
            f"attention would spend {percent(even)}."
            + (f" Its masks spend {percent(far)} on masks more than {FAR} away." if np.isfinite(far) else "")
        )
    return found


REPORT = ReportText(
    title="Locality",
    question="How far away do queries attend, and do distant masks receive attention?",
    views={
        "reach": (
            "Share of attention within a number of positions",
            "Left: attention; middle: what uniform attention under the same mask would give; right: attention of masks on "
            "masks further away than that. 0 is the query's own position.",
        ),
        "layers": (
            "Mean distance and attention to the neighbourhood, by layer",
            "Right: above 0, queries look nearer than uniform attention would.",
        ),
    },
    tables=tables,
    sentences=sentences,
)
locality = register_finding(
    Finding(
        "locality",
        paper="other papers: arXiv 2511.21338",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
        records=("locality",),
    )
)
claims = locality.claims
