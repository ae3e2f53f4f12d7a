"""Causes in words."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from floatlens.findings.causes import table as effects
from floatlens.findings.style import short
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import number, percent, points


def tables(measured: xr.Dataset) -> list[Table]:
    frame = effects(measured)
    shown = pd.DataFrame(
        {
            "intervention": frame["intervention"],
            "model": [short(str(model)) for model in frame["model"]],
            "without": frame["plain"],
            "under it": frame["under"],
            "under its control": frame["control"],
            "lost beyond the control": frame["loss"],
            "questions": frame["n"].astype(int),
        }
    )
    return [as_table("Accuracy without and with each intervention", shown, number)]


def seen(measured: xr.Dataset) -> list[str]:
    found = []
    frame = effects(measured)
    for model, of in frame.groupby("model", sort=False):
        worst = of.iloc[int(of["loss"].fillna(-1).argmax())]
        plain = float(of["plain"].iloc[0])
        found.append(
            f"{short(str(model))} has {percent(plain)} right when it is left alone. What costs it most beyond the matched "
            f"control is {worst['intervention']}: {points(-float(worst['loss']))} points ({percent(float(worst['under']))} "
            f"right under it, {percent(float(worst['control']))} under the control)."
        )
    return found


WORDS = Words(
    title="Causes",
    question="What are anchors and retrieval heads for?",
    views={
        "dose": (
            "Score over the dose, beside the control",
            "The more anchors are masked or heads taken out, the further right. The control treats as many random positions "
            "or heads alike; where the two lines part, it matters which ones are taken.",
        ),
        "effects": (
            "What each intervention takes beyond its control",
            "Zero is as much as random positions or heads take. Lines are 95 % intervals over questions.",
        ),
    },
    tables=tables,
    seen=seen,
)
