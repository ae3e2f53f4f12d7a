"""Absorption: the share of all attention that goes to the anchors, layer by layer.

Absorb(S, l) = 100 · sum of received attention over the anchors S, in percent (arXiv 2601.07894, after 2510.15731).
The published curves measure position 0 of an autoregressive model (ARM) and the strongest position of a masked diffusion
model (MDM), which are different rules: `as published`. The other rules are the same for all models. The result depends on
this choice, so all of them are shown, the paper's first.

Under a causal mask the first positions receive more than others even if attention is perfectly uniform. Absorption is
therefore reported both raw and in excess of that baseline `u`; claims use the latter, except as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.anchors import COMMON_RULES, baseline, find_anchors
from floatlens.findings import definitions, draw, published
from floatlens.findings.finding import Finding, ReportTable, as_table, declare_finding, register_claim
from floatlens.findings.positions import Layers, profile
from floatlens.findings.samples import by_model, mean, mean_over, samples_per_model
from floatlens.findings.verdict import Verdict, difference
from floatlens.stats import DEPENDS, SMALLEST_N, Array
from floatlens.trace.trace import Trace

PUBLISHED = {"arm": "first", "mdm": "top(n=1)"}  # the rules of the paper's curves


def draw_layers(measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
    """Draw absorption by depth, one panel per rule; `paper` adds the published curves."""
    rules = [str(rule) for rule in measured["rule"].values]
    data = pd.concat([table(measured), published.absorption_rows() if paper else None], ignore_index=True)
    data = data[data["rule"].isin(rules)]
    if backend == "none":
        return data
    depth = data["layer"] / data.groupby("model")["layer"].transform("max").clip(lower=1)
    shown, titles = draw.with_band(data.assign(depth=depth)), {rule: rule for rule in rules}
    note = f"Attention on the anchors, by anchor rule; mean ± std over {samples_per_model(measured)} per model."
    y = "absorption (% of attention)"
    return draw.curves(shown, "depth", "rule", titles, xlabel="relative depth", ylabel=y, ylim=(0, 100), note=note)


def row(part: xr.Dataset) -> dict[str, Any]:
    return {str(r): mean(part["absorption"].sel(rule=r).values) for r in part["rule"].values}


def tables(measured: xr.Dataset) -> list[ReportTable]:
    beyond = []
    for model, kind, part in by_model(measured):
        by_rule = {str(r): mean(part["beyond"].sel(rule=r).values) for r in measured["rule"].values}
        beyond.append({"model": model, "kind": kind, **by_rule, "position 0": mean(part["sink"].values)})
    title = "The same beyond uniform attention under the model's mask"
    return [*Finding.tables(absorption, measured), as_table(title, beyond)]


@declare_finding(draw_layers=draw_layers, row=row, tables=tables)
def absorption(trace: Trace, *, layer: Layers = None, rule: str | Sequence[str] = COMMON_RULES) -> xr.Dataset:
    """Measure how much attention the anchors absorb, in percent of all attention, mean over steps."""
    rules = [rule] if isinstance(rule, str) else list(rule)
    if set(PUBLISHED.values()) <= set(rules):
        rules = [published.RULE, *rules]
    profile_SLT = profile(trace, layer)
    a = profile_SLT.values
    u = baseline(a, trace.attention_kind)
    named = [PUBLISHED[trace.kind] if one == published.RULE else one for one in rules]
    anchors_NSLT = np.array([find_anchors(a, one, trace.attention_kind) for one in named])
    numbers = {
        "absorption": absorb(a, anchors_NSLT),
        "beyond": definitions.absorption(np.nan_to_num(a), anchors_NSLT, np.nan_to_num(u)),
        "n_anchors": anchors_NSLT.sum(axis=-1),
    }
    return xr.Dataset(
        {
            **{name: (("rule", "layer"), values.mean(axis=1)) for name, values in numbers.items()},
            "sink": ("layer", 100 * (a - u)[..., 0].mean(axis=0)),
            "sink_raw": ("layer", 100 * a[..., 0].mean(axis=0)),
        },
        coords={"rule": rules, "layer": profile_SLT["layer"]},
    )


def absorb(a: Array, anchors: Array) -> Array:
    """Percent of received attention `a` (..., T) that falls on the anchors."""
    mass = np.where(anchors & np.isfinite(a), a, 0.0).sum(axis=-1, dtype=np.float64)
    return np.clip(100.0 * mass / np.maximum(np.nansum(a, axis=-1, dtype=np.float64), 1e-12), 0.0, 100.0)


def table(traces: Any, **options: Any) -> pd.DataFrame:
    """Return one row per model, rule and layer: mean ± std over samples, and number of anchors."""
    measured = absorption.measure(traces, **options)
    found = draw.table_of(measured, ["absorption", "n_anchors"], "rule", "layer")
    anchors = found.loc[found["number"] == "n_anchors", "mean"].to_numpy()
    found = found[found["number"] == "absorption"].reset_index(drop=True).assign(anchors=anchors)
    return found[["model", "rule", "layer", "mean", "std", "anchors", "n"]]


@register_claim("absorption.more")
def absorbs_more(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    about: dict[str, Any] = {"mdm": mdm, "arm": arm, "sign": -1, "unit": " %", "digits": 1}
    beyond, raw = (mean_over(measured[name].values, 2) for name in ("beyond", "absorption"))
    rules = [str(rule) for rule in measured["rule"].values]
    outcomes = {
        rule: difference(measured, (raw if rule == published.RULE else beyond)[:, index], **about)
        for index, rule in enumerate(rules)
    }
    first, details = outcomes[rules[0]], {f"by {rule}": [o.value, *o.interval] for rule, o in outcomes.items()}
    first = replace(first, details=first.details | details)
    above = [rule for rule, found in outcomes.items() if found.interval[0] > 0]
    below = [rule for rule, found in outcomes.items() if found.interval[1] < 0]
    if first.n < SMALLEST_N or not above or not below:
        return first
    return replace(first, verdict=DEPENDS, reason=f"above 0 by {', '.join(above)}; below 0 by {', '.join(below)}")


measure, figure, claims = absorption.measure, absorption.figure, absorption.claims
