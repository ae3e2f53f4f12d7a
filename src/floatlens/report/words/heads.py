"""Retrieval heads in words."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import xarray as xr

from floatlens.findings.heads import RETRIEVES, STRONG, depth_of_heads
from floatlens.findings.samples import mean_over
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import count, number
from floatlens.report.words.models import by_model, mean


def tables(measured: xr.Dataset) -> list[Table]:
    rows = []
    for model, kind, part in by_model(measured):
        hit_LH = mean_over(part["hit"].values, 0)
        rows.append(
            {
                "model": model,
                "kind": kind,
                "heads above 0.1": int((hit_LH > RETRIEVES).sum()),
                "heads above 0.5": int((hit_LH > STRONG).sum()),
                "heads": int(np.isfinite(hit_LH).sum()),
                "mean depth of heads above 0.1": depth_of_heads(hit_LH, mean_over(part["depth"].values, 0))
                if (hit_LH > RETRIEVES).any()
                else float("nan"),
                "step-to-step overlap of the top heads": mean(part["overlap_steps"].values),
                "samples used": int((part["reason"].values == "").sum()),
            }
        )
    return [as_table("Copy scores of the heads", pd.DataFrame(rows), number)]


def seen(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        hit_LH = mean_over(part["hit"].values, 0)
        if not np.isfinite(hit_LH).any():
            found.append(f"No sample of {model} ({kind}) can be used: no committed token stands in its gold document.")
            continue
        layer, head = np.unravel_index(np.nanargmax(hit_LH), hit_LH.shape)
        strong = int((hit_LH > RETRIEVES).sum())
        found.append(
            f"{model} ({kind}) has {count(strong, 'head')} of {int(np.isfinite(hit_LH).sum())} that look at the very token "
            f"being copied in more than one of ten commits; the best is head {head} of layer {part['layer'].values[layer]} "
            f"with a score of {number(float(hit_LH[layer, head]), 2)}."
        )
    return found


def notes(measured: xr.Dataset) -> list[str]:
    left = json.loads(str(measured.attrs.get("left_out", "{}")))
    return [f"{count(n, 'sample')} left out: {reason}." for reason, n in left.items()]


WORDS = Words(
    title="Retrieval heads",
    question="Which heads fetch the answer from the gold document?",
    views={
        "map": (
            "Scores of every head, layers down, heads across",
            "A head's copy score is the share of committed answer tokens at whose commit its most attended key was that "
            "very token in the gold document. The mass score counts all attention on the gold evidence; the query-only "
            "score needs no generation.",
        ),
        "depth": (
            "Where in the model the heads sit",
            "Depth 0 is the first layer and 1 the last.",
        ),
    },
    tables=tables,
    seen=seen,
    notes=notes,
)
