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

from floatlens.findings import style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.numbers import head_maps, layer_lines
from floatlens.findings.outcome import Outcome, mean_of
from floatlens.findings.samples import Traces, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number, percent
from floatlens.trace.summarise import quarters_overlap
from floatlens.trace.trace import Trace

VIEWS = ("heads", "layers")
LABELS = {
    "overlap": "attention that stays\nfrom step to step",
    "lasting": "attention that stays\nfrom first to last quarter",
}


def measure(traces: Traces) -> xr.Dataset:
    """Measure the similarity of each head's attention between steps.

    | variable | dims | description |
    |---|---|---|
    | overlap | sample, layer | share of a query's attention that stays from step to step, mean over heads and steps |
    | overlap_by_head | sample, layer, head | the same for each head |
    | early, late | sample | the same in the first and in the last third of the steps |
    | lasting, lasting_by_head | sample, layer[, head] | overlap of the received attention of the first and last quarter |
    """
    return per_sample(traces, _measure_one, "similarity")


def _measure_one(trace: Trace) -> xr.Dataset:
    lasting = "received_lasting" if trace.is_summary else "received"
    require(trace, lasting, "step_similarity", finding="similarity")
    overlap_SLH = trace.data["step_similarity"].values.astype(np.float64)
    lasting_LH = trace.data[lasting].values
    if not trace.is_summary:
        lasting_LH = quarters_overlap(lasting_LH)
    by_step = mean_over(overlap_SLH, (1, 2))
    third = max(1, len(by_step) // 3)
    return xr.Dataset(
        {
            "overlap": ("layer", mean_over(overlap_SLH, (0, 2))),
            "overlap_by_head": (("layer", "head"), mean_over(overlap_SLH, 0)),
            "early": float(mean_over(by_step[:third], 0)),
            "late": float(mean_over(by_step[-third:], 0)),
            "lasting": ("layer", lasting_LH.mean(axis=1)),
            "lasting_by_head": (("layer", "head"), lasting_LH),
        },
        coords={"layer": trace.data["layer"], "head": trace.data["head"]},
    )


def figure(traces: Traces, *, view: str = "heads", backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw the similarity of each head (`heads`), or the means by layer (`layers`)."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "similarity") else measure(traces)
    if view == "layers":
        return layer_lines(measured, LABELS, backend=backend, note="1 minus the total variation", shares=True)
    names = {"overlap_by_head": "step to step", "lasting_by_head": "first to last quarter"}
    return head_maps(measured, names, "attention that stays", backend=backend)


@register_claim("similarity.steps")
def alike(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {"from the first to the last quarter of the steps": mean_over(measured["lasting"].values, 1)}
    return mean_of(measured, mean_over(measured["overlap"].values, 1), kind="mdm", model=mdm, beside=beside)


@register_claim("similarity.settles")
def settles(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    early, late = measured["early"].values, measured["late"].values
    return mean_of(measured, late - early, kind="mdm", model=mdm, beside={"first third": early, "last third": late})


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "step to step": mean(part["overlap"].values),
            "first third": mean(part["early"].values),
            "last third": mean(part["late"].values),
            "first to last quarter": mean(part["lasting"].values),
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Share of the attention that stays", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        step, lasting = mean(part["overlap"].values), mean_over(part["lasting_by_head"].values, 0)
        text = f"In {model} ({kind}) "
        if np.isfinite(step):
            text += f"{percent(step)} of a query's attention stays from one step to the next; "
        found.append(
            f"{text}from the first to the last quarter of the steps, {percent(float(np.nanmin(lasting)))} of the received "
            f"attention stays in the head that moves most and {percent(float(np.nanmax(lasting)))} in the one that moves "
            f"least."
        )
    return found


REPORT = ReportText(
    title="Step similarity",
    question="How similar is a head's attention from one step to the next?",
    views={
        "heads": (
            "How much of its attention each head keeps",
            "Layers down, heads across; mean over samples. Left: from one step to the next, query by query; empty for a "
            "model that computes each row once. Right: received attention of the first quarter of the steps against the "
            "last. A head that is dark on the left and light on the right moves slowly but far.",
        ),
        "layers": ("The same by layer", "Mean over heads; the band is one standard deviation over samples."),
    },
    tables=tables,
    sentences=sentences,
)
similarity = register_finding(
    Finding(
        "similarity",
        paper="other papers: arXiv 2509.24014",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
        records=("step_similarity",),
    )
)
claims = similarity.claims
