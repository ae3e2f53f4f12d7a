"""Region flow in words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import xarray as xr

from floatlens.findings.flow import TARGETS, columns_of, document_number
from floatlens.findings.samples import Array, mean_over
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import number, percent
from floatlens.report.words.models import by_model, mean


def tables(measured: xr.Dataset) -> list[Table]:
    rows = []
    for model, kind, part in by_model(measured):
        targets = {f"to {name}": share for name, share in _from_answer(part).items()}
        rows.append({"model": model, "kind": kind, **targets, "samples": part.sizes["sample"]})
    return [as_table("Rollout from the answer, share of the row, mean over samples", pd.DataFrame(rows), number)]


def seen(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        to = _from_answer(part)
        gold, other = to["gold document"], to["another document"]
        more = "more" if gold > other else "less"
        found.append(
            f"Through all layers the answer of {model} ({kind}) draws {percent(gold, 1)} from the gold document and "
            f"{percent(other, 1)} from each other one on average, {more} from the gold by "
            f"{percent(abs(gold - other), 1)} of the row; {percent(to['query'], 1)} comes from the question and "
            f"{percent(to['answer'])} from the answer itself."
        )
    places = sorted({int(p) for p in measured["gold_position"].values if p > 0})
    if len(places) > 1:
        found.append(f"Gold stood at {len(places)} different places, so place and relevance can be told apart.")
    return found


def shown(measured: xr.Dataset, view: str) -> xr.Dataset:
    """For the map, the samples with the commonest number of documents: prompts of 5 and of 20 share no readable map."""
    if view != "rollout":
        return measured
    documents = [i for i, name in enumerate(measured["region"].values) if document_number(str(name)) > 0]
    diagonal_NR = np.diagonal(measured["rollout"].values, axis1=1, axis2=2)
    counts = np.isfinite(diagonal_NR[:, documents]).sum(axis=1)
    commonest = Counter(counts.tolist()).most_common(1)[0][0]
    return measured.isel(sample=np.flatnonzero(counts == commonest))


def _from_answer(part: xr.Dataset) -> dict[str, float]:
    regions = [str(r) for r in part["region_to"].values]
    rows_NR: Array = part["rollout"].sel(region="answer").values
    found: dict[str, list[float]] = {name: [] for name in TARGETS}
    for row_R, gold in zip(rows_NR, part["gold"].values, strict=True):
        for name in TARGETS:
            columns = columns_of(name, regions, str(gold).split(", ") if gold else [])
            if columns:
                found[name].append(float(mean_over(row_R[columns], 0)))
    return {name: mean(values) if values else float("nan") for name, values in found.items()}  # type: ignore[arg-type]


WORDS = Words(
    title="Region flow",
    question="From which parts of the prompt does the answer draw?",
    views={
        "rollout": (
            "Flow between regions through all layers, one column a place of the gold document",
            "A row says from where a region draws, in per cent of the row; the framed column is the gold document's. A mark "
            "that moves with the frame is flow that follows the gold document. Shown are prompts of the commonest size. "
            "What an ARM shows above the diagonal passed through other, the template's tokens all over the prompt: it does "
            "not look ahead.",
        ),
        "layers": (
            "What the answer attends to, by layer",
            "Attention from the answer to each target at each layer, without rollout.",
        ),
        "steps": (
            "What the answer draws from, step by step",
            "The rollout at each step: does the model turn from the question to the evidence, or to its own words?",
        ),
    },
    tables=tables,
    seen=seen,
    shown=shown,
)
