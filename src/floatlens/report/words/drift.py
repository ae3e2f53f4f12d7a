"""Drift in words."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import number, percent
from floatlens.report.words.models import by_model, extreme, mean


def tables(measured: xr.Dataset) -> list[Table]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "turnover": mean(part["turnover"].values),
            "dwell, steps": mean(part["dwell"].values),
            "anchors a step": mean(part["n_anchors"].values),
            "strongest position changes": mean(part["top_turnover"].values),
            "shift of the anchors": mean(part["anchor_shift"].values),
            "step-to-step similarity of heads": mean(part["head_similarity"].values),
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Means over samples, steps and layers", pd.DataFrame(rows), number)]


def seen(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        layer, most = extreme(part, "turnover")
        found.append(
            f"In {model} ({kind}) {percent(mean(part['turnover'].values))} of the anchors are replaced from one step to "
            f"the next, most at layer {layer} ({percent(most)}); an anchor stays for "
            f"{number(mean(part['dwell'].values), 2)} steps, and the strongest position changes at "
            f"{percent(mean(part['top_turnover'].values))} of the steps."
        )
    for model, kind, part in by_model(measured):
        if kind == "MDM":
            shift = mean(part["anchor_shift"].values)
            way = "right" if shift > 0 else "left"
            found.append(
                f"Over the whole decoding the centre of {model}'s anchors moves {way} by {percent(abs(shift))} of the "
                "sequence."
            )
    return found


WORDS = Words(
    title="Drift",
    question="Do the anchors move while the model writes?",
    views={
        "heatmap": (
            "Received attention, steps down, positions across",
            "Dark is much attention, on a square-root scale. Framed or hatched cells are anchors; a vertical streak is an "
            "anchor that stays, a broken one an anchor that moves. Dots show where and when a token is committed.",
        ),
        "numbers": (
            "Movement by layer",
            "Turnover is the share of anchors replaced from one step to the next; dwell time is how long one stays. An ARM "
            "is calm by construction, since each of its steps adds one row to a running mean: compare with care.",
        ),
    },
    tables=tables,
    seen=seen,
)
