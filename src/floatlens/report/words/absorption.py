"""Absorption in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from floatlens.findings.samples import mean_over
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import number
from floatlens.report.words.models import by_model, mean


def tables(measured: xr.Dataset) -> list[Table]:
    rows = []
    for model, kind, part in by_model(measured):
        by_rule = {str(r): mean(part["absorption"].sel(rule=r).values) for r in measured["rule"].values}
        rows.append({"model": model, "kind": kind, **by_rule, "samples": part.sizes["sample"]})
    return [as_table("Per cent of attention on the anchors, by rule, mean over layers", pd.DataFrame(rows), number)]


def seen(measured: xr.Dataset) -> list[str]:
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


WORDS = Words(
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
    seen=seen,
)
