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
from floatlens.findings import definitions, draw, published, style
from floatlens.findings.finding import Finding, ReportTable, as_table, register_claim, register_finding
from floatlens.findings.received import Layers, profile
from floatlens.findings.samples import (
    Array,
    by_model,
    mean,
    mean_over,
    models_of,
    parts_of,
    samples_per_model,
    spread,
)
from floatlens.findings.spelling import number
from floatlens.findings.verdict import Outcome, difference
from floatlens.stats import Interval
from floatlens.trace.trace import Trace

PUBLISHED = {"arm": "first", "mdm": "top(n=1)"}  # the rules of the paper's curves


class Absorption(Finding):
    name = "absorption"
    needs_means = ("received",)

    def measure_one(
        self, trace: Trace, *, layer: Layers = None, rule: str | Sequence[str] = COMMON_RULES
    ) -> xr.Dataset:
        """Measure how much attention the anchors absorb, in percent of all attention, mean over steps."""
        rules = [rule] if isinstance(rule, str) else list(rule)
        if set(PUBLISHED.values()) <= set(rules):
            rules = [published.RULE, *rules]
        profile_SLT = profile(trace, layer)
        a = profile_SLT.values
        u = baseline(a, trace.attention_kind)
        found = {one: find_anchors(a, one, trace.attention_kind) for one in rules if one != published.RULE}
        anchors = [found[PUBLISHED[trace.kind] if one == published.RULE else one] for one in rules]
        known, even = np.nan_to_num(a), np.nan_to_num(u)
        numbers = {
            "absorption": [absorb(a, s) for s in anchors],
            "beyond": [definitions.absorption(known, s, even) for s in anchors],
            "n_anchors": [s.sum(axis=-1) for s in anchors],
        }
        return xr.Dataset(
            {
                **{name: (("rule", "layer"), np.mean(values, axis=1)) for name, values in numbers.items()},
                "sink": ("layer", 100 * (a - u)[..., 0].mean(axis=0)),
                "sink_raw": ("layer", 100 * a[..., 0].mean(axis=0)),
            },
            coords={"rule": rules, "layer": profile_SLT["layer"]},
        )

    def measure(self, samples: Any, **options: Any) -> xr.Dataset:
        measured = super().measure(samples, **options)
        return measured.assign_attrs(claim_rule=str(measured["rule"].values[0]))

    def draw_layers(self, measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
        """Draw absorption by depth for two rules, and its mean by every rule; `paper` adds the published curves."""
        data = table(measured)
        rules = list(dict.fromkeys(data["rule"]))
        if paper:
            data = pd.concat([data, published.absorption_rows()], ignore_index=True)
            data = data[data["rule"].isin(rules)]
        if backend == "none":
            return data
        looks = style.looks_of(list(dict.fromkeys(data["model"])))
        last = data.groupby("model")["layer"].transform("max")
        drawn = data.assign(depth=data["layer"] / last.clip(lower=1))
        by_depth = rules[: style.PANELS - 2]
        with style.sheet():
            figure = style.new_figure(2.9)
            ratios = [1.0] * len(by_depth) + ([0.22 * len(rules)] if len(rules) > 1 else [])
            grid = figure.subplots(1, len(ratios), squeeze=False, sharey=True, width_ratios=ratios)[0]
            for model, look in looks.items():
                if model not in models_of(measured):  # published curves are drawn in the background
                    look = {**look, "ls": "--", "marker": "", "alpha": 0.7, "zorder": 1}
                of_model = drawn[drawn["model"] == model]
                for axes, name in zip(grid, by_depth, strict=False):
                    draw.band(axes, of_model[of_model["rule"] == name], "depth", **look)
                if len(rules) > 1 and model in models_of(measured):
                    means = of_model.groupby("rule")["mean"].mean().reindex(rules)
                    aside = 0.12 * (list(looks).index(model) - (len(looks) - 1) / 2)
                    grid[-1].plot(np.arange(len(rules)) + aside, means, **{**look, "ls": "none"})
            for axes, name in zip(grid, by_depth, strict=False):
                axes.set(title=name, xlabel="relative depth", xlim=(-0.02, 1.02), ylim=(0, 100))
            if len(rules) > 1:
                grid[-1].set_title("all rules, mean over layers")
                grid[-1].set_xticks(range(len(rules)), labels=rules, rotation=35, ha="right")
            grid[0].set_ylabel("absorption (% of attention)")
            style.legend(figure)
            n = samples_per_model(measured)
            style.caption(figure, f"Attention on the anchors, by anchor rule; mean ± std over {n} per model.")
        return figure

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        return {str(r): mean(part["absorption"].sel(rule=r).values) for r in part["rule"].values}

    def tables(self, measured: xr.Dataset) -> list[ReportTable]:
        beyond = []
        for model, kind, part in by_model(measured):
            by_rule = {str(r): mean(part["beyond"].sel(rule=r).values) for r in measured["rule"].values}
            beyond.append({"model": model, "kind": kind, **by_rule, "position 0": mean(part["sink"].values)})
        title = "The same beyond uniform attention under the model's mask"
        return [*super().tables(measured), as_table(title, beyond)]

    def sentence(self, model: str, part: xr.Dataset) -> str:
        rule = str(part["rule"].values[0])
        values_NL = part["absorption"].sel(rule=rule).values
        by_layer, layers = mean_over(values_NL, 0), part["layer"].values
        most, least = int(np.nanargmax(by_layer)), int(np.nanargmin(by_layer))
        return (
            f"By {rule} the anchors of {model} take {number(mean(values_NL))} % of all attention, from "
            f"{number(float(by_layer[least]))} % at layer {layers[least]} to {number(float(by_layer[most]))} % at layer "
            f"{layers[most]}."
        )

    def sentences(self, measured: xr.Dataset) -> list[str]:
        found = super().sentences(measured)
        if "first" in measured["rule"].values:
            first = [
                (mean(part["absorption"].sel(rule="first").values), model) for model, _, part in by_model(measured)
            ]
            text = ", ".join(f"{number(value)} % in {model}" for value, model in first)
            found.append(f"Position 0 alone, where the classic sink lies, takes {text}.")
        return found


def absorb(a: Array, anchors: Array) -> Array:
    """Percent of received attention `a` (..., T) that falls on the anchors."""
    mass = np.where(anchors & np.isfinite(a), a, 0.0).sum(axis=-1, dtype=np.float64)
    return np.clip(100.0 * mass / np.maximum(np.nansum(a, axis=-1, dtype=np.float64), 1e-12), 0.0, 100.0)


def table(traces: Any, **options: Any) -> pd.DataFrame:
    """Return one row per model, rule and layer: mean ± std over samples, and number of anchors."""
    measured = absorption.measure(traces, **options)
    parts = []
    for model, part in parts_of(measured):
        for index, name in enumerate(measured["rule"].values):
            mean, std, n = spread(part["absorption"].values[:, index])
            columns = {
                "model": model,
                "rule": str(name),
                "layer": measured["layer"].values,
                "mean": mean,
                "std": std,
                "anchors": mean_over(part["n_anchors"].values[:, index], 0),
                "n": n,
            }
            parts.append(pd.DataFrame(columns).loc[n > 0])
    return pd.concat(parts, ignore_index=True)


@register_claim("absorption.more")
def absorbs_more(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    about: dict[str, Any] = {"mdm": mdm, "arm": arm, "sign": -1, "unit": " %", "digits": 1}
    beyond, raw = (mean_over(measured[name].values, 2) for name in ("beyond", "absorption"))
    rules = [str(rule) for rule in measured["rule"].values]
    outcomes = {
        rule: difference(measured, (raw if rule == published.RULE else beyond)[:, index], **about)
        for index, rule in enumerate(rules)
    }
    details = {f"by {rule}": [found.value, *found.interval] for rule, found in outcomes.items()}
    by_rule: dict[str, Interval] = {rule: found.interval for rule, found in outcomes.items()}
    first = outcomes[rules[0]]
    return replace(first, details={**first.details, **details}, by_rule=by_rule)


absorption = register_finding(Absorption())
measure, figure, claims = absorption.measure, absorption.figure, absorption.claims
