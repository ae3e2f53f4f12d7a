"""Token kinds in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from floatlens.findings.samples import halves, mean_over
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import number, percent
from floatlens.report.words.models import by_model, mean


def tables(measured: xr.Dataset) -> list[Table]:
    rows = []
    structural = measured["group"].values == "structural"
    for model, kind, part in by_model(measured):
        shallow, deep = (mean(x) for x in halves(part["structural_mass"].values, part["depth"].values))
        rows.append(
            {
                "model": model,
                "kind": kind,
                "structural anchor mass, shallow": shallow,
                "structural anchor mass, deep": deep,
                "structural share of all tokens": mean(part["base"].values[:, structural].sum(axis=1)),
                "samples": part.sizes["sample"],
            }
        )
    return [as_table("Shares of the anchors' attention", pd.DataFrame(rows), number)]


def seen(measured: xr.Dataset) -> list[str]:
    found = []
    names = [str(k) for k in measured["kind"].values]
    for model, kind, part in by_model(measured):
        shallow, deep = (mean(x) for x in halves(part["structural_mass"].values, part["depth"].values))
        by_kind = mean_over(mean_over(part["mass"].values, 0), 0)
        leading = names[int(np.nanargmax(by_kind))] if np.isfinite(by_kind).any() else "none"
        found.append(
            f"In {model} ({kind}) structural tokens hold {percent(shallow)} of the anchors' attention in the shallow half "
            f"of the layers and {percent(deep)} in the deep half; the leading kind over all layers is {leading}."
        )
    return found


WORDS = Words(
    title="Token kinds",
    question="Are the anchors structure or content?",
    views={
        "depth": (
            "What the anchors are, layer by layer",
            "Each bar splits the anchors' attention at a layer by kind of token: structure in blues, content in oranges. "
            "The bar on the right is how common each kind is among all tokens; where a layer's bar differs from it, anchors "
            "are chosen, not drawn at random.",
        )
    },
    tables=tables,
    seen=seen,
)
