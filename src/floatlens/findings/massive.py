"""Massive activations: whether a few channels are far larger than the rest, and whether they occur at the anchors.

arXiv 2402.17762 found them in autoregressive models, at a few positions that then become attention sinks; arXiv 2605.06366
found one dominant channel in the early layers of LLaDA, over long ranges of positions. An activation is compared with the
median of its own position. The input of a layer is the output of the previous one, so states are compared with the anchors
of the next layer.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.anchors import find_anchors, parse_rule
from floatlens.findings import style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.numbers import layer_lines
from floatlens.findings.outcome import Outcome, mean_of
from floatlens.findings.received import profile
from floatlens.findings.samples import Array, Traces, halves, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number, percent
from floatlens.trace.trace import Trace

VIEWS = ("layers",)
NAMES = ("hidden_norm", "massive_ratio", "massive_channel")
LABELS = {
    "largest": "log10 of the largest\nactivation / median",
    "one_channel": "positions where the\ncommonest channel leads",
    "at_anchor": "largest at an anchor,\nbeyond chance",
}


def measure(traces: Traces, *, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure the largest activations of hidden states, their channels and positions, mean over steps.

    | variable | dims | description |
    |---|---|---|
    | largest | sample, layer | log10 of the largest activation over the median of its position, at the largest position |
    | peak | sample | the same at the largest position and layer |
    | norm, norm_ratio | sample, layer | mean norm of the states; largest over median norm |
    | one_channel | sample, layer | share of positions whose largest activation is in the commonest channel |
    | channel | sample, layer | that channel, of all steps |
    | at_anchor | sample, layer | share of steps at which the largest position is an anchor of the next layer, minus chance |
    """
    parsed = parse_rule(rule).id
    return per_sample(traces, lambda trace: _measure_one(trace, parsed), "massive", rule=parsed)


def _measure_one(trace: Trace, rule: str) -> xr.Dataset:
    require(trace, *NAMES, means=["received"], finding="massive")
    a = profile(trace)
    norm_SLT, ratio_SLT, channel_SLT = (trace.data[name].values.astype(np.float64) for name in NAMES)
    anchors = find_anchors(a.values, rule, trace.attention)
    largest_SL = np.log10(np.nanmax(ratio_SLT, axis=-1))
    return xr.Dataset(
        {
            "largest": ("layer", mean_over(largest_SL, 0)),
            "peak": float(largest_SL.max(axis=1).mean()),
            "norm": ("layer", mean_over(norm_SLT, (0, 2))),
            "norm_ratio": ("layer", mean_over(np.nanmax(norm_SLT, -1) / np.nanmedian(norm_SLT, -1), 0)),
            "one_channel": ("layer", mean_over(share_of_commonest(channel_SLT), 0)),
            "channel": ("layer", [commonest(channel_SLT[:, layer]) for layer in range(channel_SLT.shape[1])]),
            "at_anchor": ("layer", at_next_anchors(ratio_SLT, anchors, np.isfinite(a.values))),
        },
        coords={"layer": a["layer"]},
    )


def commonest(channels: Array) -> float:
    """The number that occurs most often; NaN if there is none.

    >>> commonest(np.array([3.0, 5.0, 3.0, np.nan]))
    3.0
    """
    there, counts = np.unique(channels[np.isfinite(channels)], return_counts=True)
    return float(there[counts.argmax()]) if len(there) else float("nan")


def share_of_commonest(channel_SLT: Array) -> Array:
    """Share of positions that have the commonest number of their step and layer (step, layer).

    >>> share_of_commonest(np.array([[[3.0, 5.0, 3.0, 3.0]]]))
    array([[0.75]])
    """
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

    >>> ratio = np.array([[[1.0, 9.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]])
    >>> anchors = np.array([[[False] * 4, [False, True, False, False]]])
    >>> at_next_anchors(ratio, anchors, np.ones((1, 2, 4), bool))
    array([0.75,  nan])
    """
    L = ratio_SLT.shape[1]
    found = np.full(L, np.nan)
    top_SL = np.nan_to_num(ratio_SLT, nan=-np.inf).argmax(axis=-1)
    for layer in range(L - 1):
        hit = np.take_along_axis(anchors_SLT[:, layer + 1], top_SL[:, layer, None], axis=1)[:, 0]
        chance = anchors_SLT[:, layer + 1].sum(axis=-1) / there_SLT[:, layer + 1].sum(axis=-1)
        found[layer] = (hit - chance).mean()
    return found


def figure(
    traces: Traces, *, rule: str = "sigma(3)", view: str = "layers", backend: str = "matplotlib"
) -> Figure | pd.DataFrame:
    """Draw the largest activations by layer, the share of the most common channel, and how often they are at anchors."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "massive") else measure(traces, rule=rule)
    return layer_lines(measured, LABELS, backend=backend, zero=False)


@register_claim("massive.large")
def are_large(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    return mean_of(measured, measured["peak"].values, model=model)


@register_claim("massive.anchors")
def sit_at_anchors(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    return mean_of(measured, mean_over(measured["at_anchor"].values, 1), model=model)


@register_claim("massive.one")
def one_dominates(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    shallow, deep = halves(measured["one_channel"].values, measured["depth"].values)
    return mean_of(measured, shallow, kind="mdm", model=mdm, beside={"deep half": deep})


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = []
    for model, kind, part in by_model(measured):
        largest = mean_over(part["largest"].values, 0)
        layer = int(np.nanargmax(largest))
        rows.append(
            {
                "model": model,
                "kind": kind,
                "largest / median": 10 ** float(largest[layer]),
                "at layer": int(part["layer"].values[layer]),
                "channel there": int(commonest(part["channel"].values[:, layer])),
                "largest norm / median norm": float(np.nanmax(mean_over(part["norm_ratio"].values, 0))),
                "at an anchor, beyond chance": mean(part["at_anchor"].values),
                "samples": part.sizes["sample"],
            }
        )
    return [as_table("The largest activations", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    return [
        f"The largest activation of {model} ({kind}) is {number(10 ** mean(part['peak'].values))} times the median of its "
        f"position; it lies at an anchor of the next layer in {percent(mean(part['at_anchor'].values))} of the cases beyond "
        f"chance."
        for model, kind, part in by_model(measured)
    ]


REPORT = ReportText(
    title="Massive activations",
    question="Are a few channels far larger than the rest, and do they occur at the anchors?",
    views={
        "layers": (
            "Largest activations, their channel and their positions, by layer",
            "Left: 3 is a thousand times the median. Middle: near 1, the same channel leads at all positions. Right: 0 is "
            "chance, 1 would be always.",
        )
    },
    tables=tables,
    sentences=sentences,
)
massive = register_finding(
    Finding(
        "massive",
        paper="other papers: arXiv 2402.17762, 2605.06366",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
        records=("massive",),
    )
)
claims = massive.claims
