"""QK geometry in words."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from floatlens.findings.samples import halves
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import number, percent
from floatlens.report.words.models import by_model, mean


def tables(measured: xr.Dataset) -> list[Table]:
    rows = []
    for model, kind, part in by_model(measured):
        norm = [mean(x) for x in halves(part["norm_share"].values, part["depth"].values)]
        angle = [mean(x) for x in halves(part["angle_share"].values, part["depth"].values)]
        rows.append(
            {
                "model": model,
                "kind": kind,
                "score advantage": mean(part["advantage"].values),
                "norm's share, shallow": norm[0],
                "norm's share, deep": norm[1],
                "angle's share, shallow": angle[0],
                "angle's share, deep": angle[1],
                "value norm, anchors / others": mean(part["value_ratio"].values),
                "samples": part.sizes["sample"],
            }
        )
    return [as_table("Means over samples; shallow and deep halves of the layers", pd.DataFrame(rows), number)]


def seen(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        shallow, deep = (mean(x) for x in halves(part["norm_share"].values, part["depth"].values))
        ratio = mean(part["value_ratio"].values)
        found.append(
            f"In {model} ({kind}) the length of the keys has a share of {percent(shallow)} in the anchors' score advantage "
            f"in the shallow half of the layers and of {percent(deep)} in the deep half (a negative share works against "
            f"them); the rest is their direction. Anchors carry values {number(ratio, 2)} times as long as those of other "
            "keys."
        )
    return found


WORDS = Words(
    title="QK geometry",
    question="Do anchors win by the length of their keys, or by their direction?",
    views={
        "split": (
            "The anchors' score advantage and its two parts, by layer",
            "q·k is the product of the norms times the cosine. The two coloured lines are an exact split of the black one: "
            "what the norm adds and what the angle adds. Below: how long the anchors' values are, 1 is like all others.",
        ),
        "heatmap": (
            "Score, norm product and cosine of one sample",
            "Steps down, positions across, means over queries and heads. Framed: anchors. An anchor that stands out in the "
            "middle map wins by its norm, one that stands out in the right map by its angle.",
        ),
    },
    tables=tables,
    seen=seen,
)
