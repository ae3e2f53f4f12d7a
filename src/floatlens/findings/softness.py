"""Sink softness: whether there is one lasting sink, or many that come and go.

Sinks of diffusion models move (arXiv 2510.15731) and vary in position over the steps (arXiv 2602.17664). The soft sink score
of a position is the sigmoid of its standardised attention, averaged over steps. To compare an MDM with an ARM, score and
variance are those of the rows that write, as in the finding drift: the mean over all rows so far of an ARM could not move.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.anchors import baseline
from floatlens.findings import style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.numbers import layer_lines
from floatlens.findings.outcome import Outcome, difference, mean_of
from floatlens.findings.received import profile
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number, percent
from floatlens.findings.writing import writing_profile
from floatlens.trace.trace import Trace

VIEWS = ("layers",)
LABELS = {
    "moves": "steps away from\nthe usual position",
    "spread": "std of the sink's position\n(share of the sequence)",
    "lasting": "largest soft sink score",
}


def measure(traces: Traces) -> xr.Dataset:
    """Measure how much the most attended position moves, and how long a sink lasts.

    | variable | dims | description |
    |---|---|---|
    | moves | sample, layer | share of steps at which the most attended position is not its usual one |
    | spread | sample, layer | std over writing steps of the position that they attend to most, in shares of the sequence |
    | lasting | sample, layer | largest soft sink score of any position |
    | score | sample, layer, position | soft sink score of each position |
    """
    return per_sample(traces, _measure_one, "softness")


def _measure_one(trace: Trace) -> xr.Dataset:
    require(trace, "received_writing", means=["received"], finding="softness")
    a = profile(trace)
    excess_SLT = a.values - baseline(a.values, trace.attention)
    writing_SLT = writing_profile(trace)
    score_LT = soft_scores(writing_SLT)
    return xr.Dataset(
        {
            "moves": ("layer", away_from_usual(top(excess_SLT))),
            "spread": ("layer", spread_of(top(writing_SLT)) / writing_SLT.shape[-1]),
            "lasting": ("layer", score_LT.max(axis=-1)),
            "score": (("layer", "position"), score_LT),
        },
        coords={"layer": a["layer"], "position": a["position"]},
    )


def top(a: Array) -> Array:
    """Position with the most attention along the last axis.

    >>> top(np.array([[0.2, 0.5, np.nan]]))
    array([1])
    """
    return np.where(np.isfinite(a), a, -np.inf).argmax(axis=-1)


def away_from_usual(top_SL: Array) -> Array:
    """Share of steps at which a position is not the commonest one (layer).

    >>> away_from_usual(np.array([[3], [3], [5], [3]]))
    array([0.25])
    """
    return np.array([1 - np.bincount(column).max() / len(column) for column in top_SL.T])


def spread_of(top_SL: Array) -> Array:
    """Standard deviation over steps (layer); NaN with fewer than two.

    >>> spread_of(np.array([[1], [3]]))
    array([1.])
    """
    return np.std(top_SL, axis=0) if len(top_SL) > 1 else np.full(top_SL.shape[1:], np.nan)


def soft_scores(a_SLT: Array) -> Array:
    """Sigmoid of the attention standardised over the positions of a step, mean over steps; 0 where there is no position yet.

    >>> soft_scores(np.array([[[1.0, 0.0]], [[1.0, 0.0]]])).round(3)
    array([[0.731, 0.269]])
    """
    a = np.asarray(a_SLT, np.float64)
    middle = mean_over(a, -1)[..., None]
    std = np.sqrt(mean_over((a - middle) ** 2, -1))[..., None]
    z = np.divide(a - middle, std, out=np.zeros_like(a), where=std > 0)
    score = np.where(np.isfinite(a), 1 / (1 + np.exp(-z)), 0.0)
    return score.mean(axis=0) if len(a) else np.full(a.shape[1:], np.nan)


def figure(traces: Traces, *, view: str = "layers", backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw how much the sink moves, how much its position varies and how long it lasts, by layer."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "softness") else measure(traces)
    return layer_lines(measured, LABELS, backend=backend, note="Sinks of the writing rows; left, of all rows")


@register_claim("softness.moves")
def sink_moves(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return mean_of(measured, mean_over(measured["moves"].values, 1), kind="mdm", model=mdm)


@register_claim("softness.variance")
def sink_varies(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return difference(measured, mean_over(measured["spread"].values, 1), mdm=mdm, arm=arm)


@register_claim("softness.lasting")
def sink_lasts(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return difference(measured, mean_over(measured["lasting"].values, 1), mdm=mdm, arm=arm, sign=-1)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = [
        {
            "model": model,
            "kind": kind,
            **{label.replace("\n", " "): mean(part[name].values) for name, label in LABELS.items()},
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Means over layers and samples", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    return [
        f"The most attended position of {model} ({kind}) is away from its usual place in "
        f"{percent(mean(part['moves'].values))} of the steps; no position has a soft sink score above "
        f"{number(float(np.nanmax(part['lasting'].values)), 2)}."
        for model, kind, part in by_model(measured)
    ]


REPORT = ReportText(
    title="Sink softness",
    question="Is there one lasting sink, or many that come and go?",
    views={
        "layers": (
            "How much the sink moves, varies and lasts, by layer",
            "Left: all rows. Middle and right: the rows that write. A fixed sink has 0, 0 and nearly 1.",
        )
    },
    tables=tables,
    sentences=sentences,
)
softness = register_finding(
    Finding(
        "softness",
        paper="other papers: arXiv 2510.15731, 2602.17664",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
    )
)
claims = softness.claims
