"""Value sinks: whether anchors have small values.

A position that receives much attention and has a small value adds little: attention is parked there (arXiv 2410.10781 for
autoregressive models, 2601.19657 for diffusion models).
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
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number
from floatlens.trace.trace import Trace

VIEWS = ("layers",)
LABELS = {"anchors": "value norm,\nanchors", "others": "value norm,\nothers", "smaller": "log2 of\nothers / anchors"}


def measure(traces: Traces, *, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure the value norms of anchors and of other positions, mean over key/value heads and steps.

    | variable | dims | description |
    |---|---|---|
    | anchors, others | sample, layer | mean norm, over the steps that have anchors |
    | smaller | sample, layer | log2 of the others' mean norm over that of the anchors, mean over steps |
    """
    parsed = parse_rule(rule).id
    return per_sample(traces, lambda trace: _measure_one(trace, parsed), "values", rule=parsed)


def _measure_one(trace: Trace, rule: str) -> xr.Dataset:
    require(trace, means=["received", "value_norm"], finding="values")
    a = profile(trace)
    norm_SLT = trace.head_mean("value_norm").transpose("step", "layer", "position").values
    anchors = find_anchors(a.values, rule, trace.attention)
    there = np.isfinite(a.values) & np.isfinite(norm_SLT)
    of_anchors, of_others = means_of_both(norm_SLT, anchors & there, ~anchors & there)
    with np.errstate(divide="ignore", invalid="ignore"):
        smaller = np.log2(of_others / of_anchors)
    return xr.Dataset(
        {
            "anchors": ("layer", mean_over(of_anchors, 0)),
            "others": ("layer", mean_over(of_others, 0)),
            "smaller": ("layer", mean_over(smaller, 0)),
        },
        coords={"layer": a["layer"]},
    )


def means_of_both(values: Array, one: Array, other: Array) -> tuple[Array, Array]:
    """Means over the last axis of two groups; NaN for both where one of them is empty.

    >>> means_of_both(np.array([1.0, 2.0, 4.0]), np.array([True, False, False]), np.array([False, True, True]))
    (array(1.), array(3.))
    """
    first, second = (mean_over(np.where(group, values, np.nan), -1) for group in (one, other))
    both = np.isfinite(first) & np.isfinite(second)
    return np.where(both, first, np.nan), np.where(both, second, np.nan)


def figure(
    traces: Traces, *, rule: str = "sigma(3)", view: str = "layers", backend: str = "matplotlib"
) -> Figure | pd.DataFrame:
    """Draw value norms of anchors and others by layer, and their ratio."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "values") else measure(traces, rule=rule)
    return layer_lines(measured, LABELS, backend=backend, zero=False)


@register_claim("values.small")
def small_values(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    return mean_of(measured, mean_over(measured["smaller"].values, 1), model=model)


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
    return [as_table("Value norms, mean over layers", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        smaller = mean(part["smaller"].values)
        if np.isfinite(smaller):
            found.append(
                f"The values of {model}'s anchors ({kind}) are {number(2.0**-smaller)} times as long as others."
            )
        else:
            found.append(f"{model} ({kind}) has no anchors by {measured.attrs['rule']}.")
    return found


REPORT = ReportText(
    title="Value sinks",
    question="Do anchors have small values?",
    views={
        "layers": (
            "Value norms of anchors and of other positions, by layer",
            "Right: above 0 the anchors' values are the shorter ones; 1 is half as long. The band is one standard deviation "
            "over samples.",
        )
    },
    tables=tables,
    sentences=sentences,
)
values = register_finding(
    Finding(
        "values",
        paper="other papers: arXiv 2601.19657, 2410.10781",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
    )
)
claims = values.claims
