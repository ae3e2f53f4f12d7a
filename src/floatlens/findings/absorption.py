"""Absorption: the share of all attention that goes to the anchors, layer by layer.

Absorb(S, l) = 100 · sum of received attention over the anchors S, in percent (arXiv 2601.07894, after 2510.15731).
The published curves measure position 0 of an autoregressive model (ARM) and the strongest position of a masked diffusion
model (MDM), which are different rules. Here all models are measured by the same rule, and `table` shows the rules side by
side because the result depends on this choice.

Under a causal mask the first positions receive more than others even if attention is perfectly uniform. Absorption is
therefore reported both raw and in excess of that baseline `u`; claims use the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.anchors import COMMON_RULES, baseline, find_anchors, parse_rule
from floatlens.findings import draw, published, style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.outcome import Outcome, difference, mean_of
from floatlens.findings.received import Layers, profile
from floatlens.findings.samples import (
    Array,
    Traces,
    is_measured,
    mean_over,
    models_of,
    per_sample,
    require,
    samples_per_model,
    spread,
)
from floatlens.findings.spelling import number
from floatlens.paper import definitions
from floatlens.trace.trace import Trace

VIEWS = ("layers",)
RULES = COMMON_RULES


def measure(traces: Traces, *, layer: Layers = None, rule: str | Sequence[str] = RULES) -> xr.Dataset:
    """Measure how much attention the anchors absorb, in percent of all attention, mean over steps.

    | variable | dims | description |
    |---|---|---|
    | absorption | sample, rule, layer | received attention on the anchors; 0 if there are none |
    | beyond | sample, rule, layer | the same, minus what uniform attention under the run's mask would give them |
    | n_anchors | sample, rule, layer | mean number of anchors per step |
    | sink, sink_raw | sample, layer | received attention of position 0, beyond uniform attention and raw |
    """
    ids = [parse_rule(r).id for r in ([rule] if isinstance(rule, str) else rule)]
    return per_sample(
        traces, lambda trace: _measure_one(trace, layer, ids), "absorption", rule=", ".join(ids), claim_rule=ids[0]
    )


def _measure_one(trace: Trace, layer: Layers, rules: Sequence[str]) -> xr.Dataset:
    require(trace, means=["received"], finding="absorption")
    a = profile(trace, layer)
    anchors = [find_anchors(a.values, rule, trace.attention) for rule in rules]
    u = baseline(a.values, trace.attention)
    return xr.Dataset(
        {
            "absorption": (("rule", "layer"), np.array([absorb(a.values, s).mean(axis=0) for s in anchors])),
            "beyond": (
                ("rule", "layer"),
                np.array(
                    [definitions.absorption(np.nan_to_num(a.values), s, np.nan_to_num(u)).mean(axis=0) for s in anchors]
                ),
            ),
            "n_anchors": (("rule", "layer"), np.array([s.sum(axis=-1).mean(axis=0) for s in anchors])),
            "sink": ("layer", 100 * (a.values - u)[..., 0].mean(axis=0)),
            "sink_raw": ("layer", 100 * a.values[..., 0].mean(axis=0)),
        },
        coords={"rule": list(rules), "layer": a["layer"]},
    )


def table(traces: Traces, *, rule: str | Sequence[str] = RULES) -> pd.DataFrame:
    """Return one row per model, rule and layer: mean ± std over samples, and number of anchors."""
    measured = traces if is_measured(traces, "absorption") else measure(traces, rule=rule)
    parts = []
    for model in models_of(measured):
        rows = measured["model"].values == model
        for index, name in enumerate(measured["rule"].values):
            mean, std, n = spread(measured["absorption"].values[rows, index])
            columns = {
                "model": model,
                "rule": str(name),
                "layer": measured["layer"].values,
                "mean": mean,
                "std": std,
                "anchors": mean_over(measured["n_anchors"].values[rows, index], 0),
                "n": n,
            }
            parts.append(pd.DataFrame(columns).loc[n > 0])
    return pd.concat(parts, ignore_index=True)


def figure(
    traces: Traces,
    *,
    layer: Layers = None,
    rule: str | Sequence[str] = RULES,
    view: str = "layers",
    paper: bool = False,
    backend: str = "matplotlib",
) -> Figure | pd.DataFrame:
    """Draw absorption by layer, one line per model, one panel per rule, mean ± std over samples.

    `paper` adds the published curves, placed by relative depth.
    """
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "absorption") else measure(traces, layer=layer, rule=rule)
    data = table(measured)
    rules = list(dict.fromkeys(data["rule"]))
    if paper:
        known = published.absorption_rows(int(data["layer"].max()))
        data = pd.concat([data, known[known["rule"].isin(rules)]], ignore_index=True)
    if backend == "none":
        return data
    models = list(dict.fromkeys(data["model"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    last = data.groupby("model")["layer"].transform("max")
    along = "layer" if last.nunique() == 1 else "depth"  # models of different depth are compared by relative depth
    drawn = data.assign(depth=data["layer"] / last.clip(lower=1))
    with style.sheet():
        narrow = len(rules) < 3
        figure = style.new_figure(2.4 if len(rules) <= 3 else 4.0, width=3.4 * len(rules) if narrow else style.WIDTH)
        columns = min(3, len(rules))
        grid = figure.subplots(-(-len(rules) // columns), columns, squeeze=False, sharex=True, sharey=True)
        for axes, name in zip(grid.flat, rules, strict=False):
            for model in models:
                part = drawn[(drawn["rule"] == name) & (drawn["model"] == model)]
                look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                if model not in models_of(measured):  # published curves are drawn in the background
                    look |= {"ls": "--", "marker": "", "alpha": 0.7, "zorder": 1}
                draw.band(axes, part, along, **look)
            axes.set_title(name)
            axes.set_ylim(0, 100)
            axes.xaxis.set_major_locator(MaxNLocator(integer=along == "layer", nbins=6))
        for axes in grid[:, 0]:
            axes.set_ylabel("absorption (% of attention)")
        for column in range(columns):
            lowest = [row for row in range(len(grid)) if row * columns + column < len(rules)][-1]
            grid[lowest, column].set_xlabel("layer" if along == "layer" else "depth (0 first, 1 last layer)")
            grid[lowest, column].tick_params(labelbottom=True)
        for axes in list(grid.flat)[len(rules) :]:
            axes.set_axis_off()
        named = {
            label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        handles, labels = list(named.values()), list(named)
        if len(rules) % columns and len(rules) > columns:
            grid[-1, -1].legend(handles, labels, loc="center", title="model")
        else:
            figure.legend(handles, labels, loc="outside upper center", ncols=len(models))
        n = samples_per_model(measured)
        style.caption(figure, f"Attention on the anchors, by anchor rule; mean ± std over {n} per model.")
    return figure


@register_claim("absorption.more")
def absorbs_more(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    by_rule = {str(rule): index for index, rule in enumerate(measured["rule"].values)}
    beyond, raw = (mean_over(measured[name].values, 2) for name in ("beyond", "absorption"))
    beside = {f"raw, by {rule}": raw[:, index] for rule, index in by_rule.items()}
    beside |= {f"beyond uniform, by {rule}": beyond[:, index] for rule, index in by_rule.items()}
    if {"first", "top(n=1)"} <= by_rule.keys():
        arms = measured["model_kind"].values == "arm"
        mixture = np.where(arms, raw[:, by_rule["first"]], raw[:, by_rule["top(n=1)"]])
        beside["raw, by the published mixture (position 0 of the ARM, largest of the MDM)"] = mixture
    return difference(measured, beyond[:, 0], mdm=mdm, arm=arm, sign=-1, unit=" %", digits=1, beside=beside)


@register_claim("absorption.sink")
def has_sink(measured: xr.Dataset, *, arm: str | None = None) -> Outcome:
    return mean_of(
        measured,
        mean_over(measured["sink"].values, 1),
        kind="arm",
        model=arm,
        beside={"attention on position 0, raw, %": mean_over(measured["sink_raw"].values, 1)},
    )


def absorb(a: Array, anchors: Array) -> Array:
    """Percent of received attention `a` (..., T) that falls on the anchors.

    >>> absorb(np.array([0.5, 0.25, 0.25]), np.array([True, False, False])).item()
    50.0
    """
    mass = np.where(anchors & np.isfinite(a), a, 0.0).sum(axis=-1, dtype=np.float64)
    return np.clip(100.0 * mass / np.maximum(np.nansum(a, axis=-1, dtype=np.float64), 1e-12), 0.0, 100.0)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = []
    for model, kind, part in by_model(measured):
        by_rule = {str(r): mean(part["absorption"].sel(rule=r).values) for r in measured["rule"].values}
        rows.append({"model": model, "kind": kind, **by_rule, "samples": part.sizes["sample"]})
    beyond = []
    for model, kind, part in by_model(measured):
        by_rule = {str(r): mean(part["beyond"].sel(rule=r).values) for r in measured["rule"].values}
        beyond.append({"model": model, "kind": kind, **by_rule, "position 0": mean(part["sink"].values)})
    return [
        as_table("Percent of attention on the anchors, by rule, mean over layers", pd.DataFrame(rows), number),
        as_table("The same beyond uniform attention under the model's mask", pd.DataFrame(beyond), number),
    ]


def sentences(measured: xr.Dataset) -> list[str]:
    found, rule = [], str(measured["rule"].values[0])
    for model, kind, part in by_model(measured):
        values_NL = part["absorption"].sel(rule=rule).values
        by_layer = mean_over(values_NL, 0)
        there = np.flatnonzero(np.isfinite(by_layer))
        most, least = there[by_layer[there].argmax()], there[by_layer[there].argmin()]
        layers = part["layer"].values
        found.append(
            f"By {rule} the anchors of {model} ({kind}) take {number(mean(values_NL))} % of all attention, from "
            f"{number(float(by_layer[least]))} % at layer {layers[least]} to {number(float(by_layer[most]))} % at "
            f"layer {layers[most]}."
        )
    first = {model: mean(part["absorption"].sel(rule="first").values) for model, _, part in by_model(measured)
             if "first" in measured["rule"].values}  # fmt: skip
    if first:
        text = ", ".join(f"{number(value)} % in {model}" for model, value in first.items())
        found.append(f"Position 0 alone, where the classic sink lies, takes {text}.")
    return found


REPORT = ReportText(
    title="Absorption",
    question="How much of all attention do the anchors receive?",
    views={
        "layers": (
            "Attention on the anchors by layer, one panel per rule",
            "Each panel measures all models by the same rule. The result depends on the rule, so all are shown side by "
            "side. The band is one standard deviation over samples.",
        )
    },
    tables=tables,
    sentences=sentences,
)
absorption = register_finding(
    Finding("absorption", paper="attention absorption", measure=measure, figure=figure, views=VIEWS, report=REPORT)
)
claims = absorption.claims
