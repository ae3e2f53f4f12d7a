"""Absorption: how much of all attention do the anchors take, layer by layer?

Absorb(S, l) = 100 · sum of received attention over the anchors S, in per cent (arXiv 2601.07894, after 2510.15731).
The published curves measure position 0 of an ARM and the one strongest position of an MDM, which are different rules;
here every model is measured by the same one, and `table` puts the rules side by side because the choice decides the
picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.anchors import parse_rule
from floatlens.findings import draw, style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportText, Table, as_table, register_claim, register_finding
from floatlens.findings.received import Layers, anchors_of, profile
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, models_of, per_sample, require, spread
from floatlens.findings.sides import compare
from floatlens.findings.spelling import number
from floatlens.findings.verdict import Verdict
from floatlens.record.trace import Trace
from floatlens.stats import INCONCLUSIVE, SUPPORTED, bootstrap_difference, judge_threshold

VIEWS = ("layers",)
RULES = ("sigma(3)", "excess(3)", "top(1)", "first", "share(0.3)")


def measure(traces: Traces, *, layer: Layers = None, rule: str | Sequence[str] = RULES) -> xr.Dataset:
    """How much attention do the anchors absorb? Per cent of all attention, mean over steps.

    | variable | dims | what |
    |---|---|---|
    | absorption | sample, rule, layer | per cent of received attention on the anchors; 0 when there are none |
    | n_anchors | sample, rule, layer | mean number of anchors at a step |
    """
    ids = [parse_rule(r).id for r in ([rule] if isinstance(rule, str) else rule)]
    return per_sample(traces, lambda trace: _measure_one(trace, layer, ids), "absorption", rule=", ".join(ids))


def _measure_one(trace: Trace, layer: Layers, rules: Sequence[str]) -> xr.Dataset:
    require(trace, "received", finding="absorption")
    a = profile(trace, layer)
    anchors = [anchors_of(a.values, rule, trace.attention) for rule in rules]
    return xr.Dataset(
        {
            "absorption": (("rule", "layer"), np.array([absorb(a.values, s).mean(axis=0) for s in anchors])),
            "n_anchors": (("rule", "layer"), np.array([s.sum(axis=-1).mean(axis=0) for s in anchors])),
        },
        coords={"rule": list(rules), "layer": a["layer"]},
    )


def table(traces: Traces, *, rule: str | Sequence[str] = RULES) -> pd.DataFrame:
    """The rules side by side: one row a model, rule and layer, mean ± std over samples, and number of anchors."""
    measured = traces if is_measured(traces, "absorption") else measure(traces, rule=rule)
    parts = []
    for model in models_of(measured):
        rows = measured["model"].values == model
        for place, name in enumerate(measured["rule"].values):
            mean, std, n = spread(measured["absorption"].values[rows, place])
            columns = {
                "model": model,
                "rule": str(name),
                "layer": measured["layer"].values,
                "mean": mean,
                "std": std,
                "anchors": mean_over(measured["n_anchors"].values[rows, place], 0),
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
    backend: str = "matplotlib",
) -> Figure | pd.DataFrame:
    """Absorption by layer, one line a model, one panel a rule, mean ± std over samples."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "absorption") else measure(traces, layer=layer, rule=rule)
    data = table(measured)
    if backend == "none":
        return data
    models, rules = models_of(measured), list(dict.fromkeys(data["rule"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    with style.sheet():
        narrow = len(rules) < 3
        figure = style.new_figure(2.4 if len(rules) <= 3 else 4.0, width=3.4 * len(rules) if narrow else style.WIDTH)
        columns = min(3, len(rules))
        grid = figure.subplots(-(-len(rules) // columns), columns, squeeze=False, sharex=True, sharey=True)
        for axes, name in zip(grid.flat, rules, strict=False):
            for model in models:
                part = data[(data["rule"] == name) & (data["model"] == model)]
                look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                draw.band(axes, part, **look)
            axes.set_title(name)
            axes.set_ylim(0, 100)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        for axes in grid[:, 0]:
            axes.set_ylabel("absorption (% of attention)")
        for column in range(columns):
            lowest = [row for row in range(len(grid)) if row * columns + column < len(rules)][-1]
            grid[lowest, column].set_xlabel("layer")
            grid[lowest, column].tick_params(labelbottom=True)
        for axes in list(grid.flat)[len(rules) :]:
            axes.set_axis_off()
        handles, labels = grid[0, 0].get_legend_handles_labels()
        if len(rules) % columns and len(rules) > columns:
            grid[-1, -1].legend(handles, labels, loc="center", title="model")
        else:
            figure.legend(handles, labels, loc="outside upper center", ncols=len(models))
        n = int(data["n"].max())
        style.caption(
            figure, f"Attention on the anchors, by anchor rule; mean ± std over {n} sample{'s' * (n != 1)} a model."
        )
    return figure


@register_claim(
    "absorption.sink",
    finding="absorption",
    sentence="The ARM absorbs more at its sink than the MDM at its anchors",
    source="arXiv 2601.07894",
)
def claim(traces: Traces, *, rule: str = "sigma(3)", mdm: str | None = None, arm: str | None = None) -> Verdict:
    """The ARM absorbs more at its sink than the MDM at its anchors, both by the same rule.

    The details give the same difference under every other rule that was measured.
    """
    measured = (
        traces if is_measured(traces, "absorption") else measure(traces, rule=tuple({rule: 0, **dict.fromkeys(RULES)}))
    )
    wanted = parse_rule(rule).id
    ids = [str(r) for r in measured["rule"].values]
    place = ids.index(wanted) if wanted in ids else 0
    per_rule = mean_over(measured["absorption"].values, 2)

    def decide(interval: tuple[float, float], sides: dict[str, Array]) -> tuple[str, str, dict[str, Any]]:
        names = {side: [str(i) for i in measured["sample_id"].values[sides[side]]] for side in ("arm", "mdm")}
        details = {
            "ARM, %": float(sides["arm_values"].mean()),
            "MDM, %": float(sides["mdm_values"].mean()),
            "ARM minus MDM by rule": {
                name: bootstrap_difference(
                    per_rule[sides["arm"], i], per_rule[sides["mdm"], i], names["arm"], names["mdm"]
                )[:2]
                for i, name in enumerate(ids)
            },
        }
        verdict = judge_threshold(interval)
        reason = f"{details['ARM, %']:.1f} % against {details['MDM, %']:.1f} %"
        against = [
            name for name, (_, other) in details["ARM minus MDM by rule"].items() if judge_threshold(other) != SUPPORTED
        ]  # type: ignore[attr-defined]
        if verdict == SUPPORTED and against:
            reason += f"; but not by {', '.join(against)}"
        return verdict, reason if verdict != INCONCLUSIVE else f"the interval holds zero ({reason})", details

    found = compare(
        measured.assign_attrs(rule=ids[place]),
        per_rule[:, place],
        finding="absorption",
        claim="The ARM absorbs more at its sink than the MDM at its anchors",
        statistic="absorption in per cent of attention, ARM minus MDM, mean over steps and layers",
        mdm=mdm,
        arm=arm,
        decide=decide,
        sign=-1,
    )
    return found


def absorb(a: Array, anchors: Array) -> Array:
    """Per cent of received attention `a` (..., T) that falls on the anchors.

    >>> absorb(np.array([0.5, 0.25, 0.25]), np.array([True, False, False])).item()
    50.0
    """
    mass = np.where(anchors & np.isfinite(a), a, 0.0).sum(axis=-1, dtype=np.float64)
    return np.clip(100.0 * mass / np.maximum(np.nansum(a, axis=-1, dtype=np.float64), 1e-12), 0.0, 100.0)


def tables(measured: xr.Dataset) -> list[Table]:
    rows = []
    for model, kind, part in by_model(measured):
        by_rule = {str(r): mean(part["absorption"].sel(rule=r).values) for r in measured["rule"].values}
        rows.append({"model": model, "kind": kind, **by_rule, "samples": part.sizes["sample"]})
    return [as_table("Per cent of attention on the anchors, by rule, mean over layers", pd.DataFrame(rows), number)]


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
            f"{number(float(by_layer[least]))} % at layer {layers[least]} to {number(float(by_layer[most]))} % at layer "
            f"{layers[most]}."
        )
    first = {model: mean(part["absorption"].sel(rule="first").values) for model, _, part in by_model(measured)
             if "first" in measured["rule"].values}  # fmt: skip
    if first:
        said = ", ".join(f"{number(value)} % in {model}" for model, value in first.items())
        found.append(f"Position 0 alone, the place of the classic sink, takes {said}.")
    return found


REPORT = ReportText(
    title="Absorption",
    question="How much of all attention do the anchors take?",
    views={
        "layers": (
            "Attention on the anchors by layer, one panel a rule",
            "Each panel measures all models by the same rule; the rule decides the picture, so all stand side by side. The "
            "band is one standard deviation over samples.",
        )
    },
    tables=tables,
    sentences=sentences,
)
absorption = register_finding(
    Finding("absorption", paper="attention absorption", measure=measure, figure=figure, views=VIEWS, report=REPORT)
)
claims = absorption.claims
