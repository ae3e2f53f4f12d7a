"""Stress in words."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from floatlens.evaluation.stress import curves
from floatlens.evaluation.stress.stress import STRESSES
from floatlens.findings.stress import long
from floatlens.findings.style import short
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import listed, number, percent


def tables(measured: xr.Dataset) -> list[Table]:
    frame = _robustness(measured)
    kept = [c for c in ("stress", "data", "model", "range", "slope", "loss", "levels", "n") if c in frame]
    frame = frame[kept].rename(columns={"range": "best − worst", "loss": "first − last", "n": "questions"})
    frame["model"] = [short(str(m)) for m in frame["model"]]
    return [as_table(f"{measured.attrs['score']} under stress", frame, number)]


def _robustness(measured: xr.Dataset) -> pd.DataFrame:
    return curves.robustness(long(measured), str(measured.attrs["score"]))


def seen(measured: xr.Dataset) -> list[str]:
    score = str(measured.attrs["score"])
    points = curves.curves(long(measured), score)
    found = []
    for (stress, data), part in points.groupby(["stress", "data"], sort=False):
        said = []
        for model, of in part.groupby("model", sort=False):
            worst, best = of.iloc[int(of["mean"].argmin())], of.iloc[int(of["mean"].argmax())]
            if worst["mean"] == best["mean"]:
                said.append(f"{short(str(model))} stays at {percent(best['mean'])}")
                continue
            said.append(
                f"{short(str(model))} lies between {percent(worst['mean'])} ({worst['level']}) and "
                f"{percent(best['mean'])} ({best['level']})"
            )
        found.append(f"Under {stress} ({STRESSES[str(stress)].about}; {data}) {listed(said)}.")
    return found


WORDS = Words(
    title="Stress",
    question="What is left when the passages get harder to use?",
    views={
        "curves": (
            "Score over the levels of each stress, one line a model",
            "A flat line is a model that does not care. Bands are 95 % intervals over questions; levels without a place on "
            "the axis stand at its right end.",
        )
    },
    tables=tables,
    seen=seen,
)
