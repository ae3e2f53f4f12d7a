"""Cache drift: which keys and values could be reused from one step to the next.

A bidirectional model computes all keys and values again at every step. Caches for diffusion models reuse those that hardly
change (arXiv 2510.14973, 2604.12056). The change of a position is the mean of the relative changes of its key and of its
value; positions that the model itself caches are not computed again and are not counted.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.findings import style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.numbers import layer_lines, step_maps
from floatlens.findings.outcome import Outcome, mean_of
from floatlens.findings.received import profile
from floatlens.findings.samples import Array, Traces, halves, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number, percent
from floatlens.stats import spearman
from floatlens.trace.trace import Trace

VIEWS = ("layers", "reuse")
NAMES = ("key_change", "key_cos", "value_change", "value_cos", "hidden_change", "hidden_cos")
TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
TOLERANCE = 0.1  # a cosine of about 0.995
LABELS = {
    "key_change": "change of keys",
    "value_change": "change of values",
    "hidden_change": "change of states",
}


def measure(traces: Traces) -> xr.Dataset:
    """Measure how much keys, values and hidden states change from step to step, mean over steps and positions.

    | variable | dims | description |
    |---|---|---|
    | key_change, value_change, hidden_change | sample, layer | norm of the difference / norm at the previous step |
    | key_cos, value_cos, hidden_cos | sample, layer | cosine with the vector of the previous step |
    | reusable | sample, threshold, layer | share of positions whose key and value both change by less than it |
    | reusable_by_step | sample, step, layer | the same at each step, at a tolerance of 0.1 |
    | rank | sample, layer | share of positions that change more than the previous step's most attended one, minus 1/2 |
    | attended | sample, layer | rank correlation over positions of received attention at the previous step and change |
    """
    return per_sample(traces, _measure_one, "cache", tolerance=TOLERANCE)


def _measure_one(trace: Trace) -> xr.Dataset:
    require(trace, *NAMES, means=["received"], finding="cache")
    data = trace.data
    key_SLT, value_SLT = (data[name].values.astype(np.float64) for name in ("key_change", "value_change"))
    change_SLT, largest_SLT = (key_SLT + value_SLT) / 2, np.maximum(key_SLT, value_SLT)
    a_SLT = profile(trace).values
    by_step = np.array([share_below(largest_SLT, tolerance) for tolerance in TOLERANCES])
    return xr.Dataset(
        {
            **{name: ("layer", mean_over(data[name].values.astype(float), (0, 2))) for name in NAMES},
            "reusable": (("threshold", "layer"), mean_over(by_step, 1)),
            "reusable_by_step": (("step", "layer"), by_step[TOLERANCES.index(TOLERANCE)]),
            "rank": ("layer", rank_of_attended(a_SLT, change_SLT)),
            "attended": ("layer", attended_correlation(a_SLT, change_SLT)),
        },
        coords={"layer": data["layer"], "step": data["step"], "threshold": list(TOLERANCES)},
    )


def share_below(change: Array, tolerance: float) -> Array:
    """Share of the values along the last axis that lie below a tolerance; NaN where there are none.

    >>> share_below(np.array([0.05, 0.2, np.nan]), 0.1).item()
    0.5
    """
    below = np.where(np.isfinite(change), change < tolerance, np.nan)
    return mean_over(below, -1)


def rank_of_attended(a_SLT: Array, change_SLT: Array) -> Array:
    """Share of positions that change more than the previous step's most attended one, ties half, minus 1/2 (layer).

    >>> a = np.array([[[0.2, 0.7, 0.1]], [[0.2, 0.7, 0.1]]])
    >>> change = np.array([[[np.nan, np.nan, np.nan]], [[0.3, 0.1, 0.2]]])
    >>> rank_of_attended(a, change)
    array([0.5])
    """
    S, L, _ = change_SLT.shape
    found = np.full((S, L), np.nan)
    for step in range(1, S):
        for layer in range(L):
            now, before = change_SLT[step, layer], a_SLT[step - 1, layer]
            there = np.isfinite(now) & np.isfinite(before)
            if there.sum() > 1:
                top = np.flatnonzero(there)[before[there].argmax()]
                others = now[there & (np.arange(len(now)) != top)]
                found[step, layer] = (others > now[top]).mean() + (others == now[top]).mean() / 2 - 0.5
    return mean_over(found, 0)


def attended_correlation(a_SLT: Array, change_SLT: Array) -> Array:
    """Rank correlation over positions of attention at the previous step and change, mean over steps (layer)."""
    S, L, _ = change_SLT.shape
    found = np.full((S, L), np.nan)
    for step in range(1, S):
        for layer in range(L):
            if np.isfinite(change_SLT[step, layer]).any():
                found[step, layer] = spearman(a_SLT[step - 1, layer], change_SLT[step, layer])
    return mean_over(found, 0)


def figure(traces: Traces, *, view: str = "layers", backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw the change by layer, one line per model (`layers`), or the share of reusable positions by step (`reuse`)."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "cache") else measure(traces)
    if view == "layers":
        return layer_lines(measured, LABELS, backend=backend, note="Relative change from one step to the next")
    note = f"Share of positions whose key and value both change by less than {TOLERANCE:g} since the previous step"
    return step_maps(measured, "reusable_by_step", "share of positions", note=note, backend=backend)


@register_claim("cache.anchor")
def attended_changes_least(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {"rank correlation of attention and change": mean_over(measured["attended"].values, 1)}
    return mean_of(measured, mean_over(measured["rank"].values, 1), kind="mdm", model=mdm, beside=beside)


@register_claim("cache.deep")
def deep_changes_more(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    change_NL = (measured["key_change"].values + measured["value_change"].values) / 2
    shallow, deep = halves(change_NL, measured["depth"].values)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log2(deep / shallow)
    beside = {"change, shallow half": shallow, "change, deep half": deep}
    return mean_of(measured, np.where(np.isfinite(ratio), ratio, np.nan), kind="mdm", model=mdm, beside=beside)


@register_claim("cache.few")
def few_change(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    shares_NKL = measured["reusable"].values
    beside = {f"share below {t:g}": mean_over(shares_NKL[:, k], 1) for k, t in enumerate(TOLERANCES)}
    shares = mean_over(measured["reusable"].sel(threshold=TOLERANCE).values, 1)
    return mean_of(measured, shares, kind="mdm", model=mdm, beside=beside)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = []
    for model, kind, part in by_model(measured):
        shares = {f"< {t:g}": mean(part["reusable"].sel(threshold=t).values) for t in TOLERANCES}
        rows.append({"model": model, "kind": kind, **shares, "samples": part.sizes["sample"]})
    title = "Share of positions whose key and value both change by less than a tolerance per step, mean over layers"
    return [as_table(title, pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        share = mean(part["reusable"].sel(threshold=TOLERANCE).values)
        if not np.isfinite(share):
            found.append(f"{model} ({kind}) keeps its keys and values in a cache, so they do not change.")
            continue
        key, value = (mean(part[name].values) for name in ("key_change", "value_change"))
        found.append(
            f"From one step to the next the keys of {model} ({kind}) change by {percent(key)} of their length and its "
            f"values by {percent(value)}; {percent(share)} of the positions could be reused at a tolerance of "
            f"{TOLERANCE:g}."
        )
    return found


REPORT = ReportText(
    title="Cache drift",
    question="Which keys and values could be reused from one step to the next?",
    views={
        "layers": (
            "Relative change of keys, values and hidden states, by layer",
            "Mean over positions and steps. A model that keeps its keys and values in a cache has no line.",
        ),
        "reuse": (
            "Share of positions that could be reused, by step and layer",
            "Columns are steps, rows are layers. Dark: a cache would have to recompute little.",
        ),
    },
    tables=tables,
    sentences=sentences,
)
cache = register_finding(
    Finding(
        "cache",
        paper="other papers: arXiv 2510.14973, 2604.12056",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
        records=("cache_drift",),
    )
)
claims = cache.claims
