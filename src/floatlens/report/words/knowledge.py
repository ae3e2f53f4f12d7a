"""Knowledge in words."""

from __future__ import annotations

import pandas as pd
import xarray as xr

from floatlens.evaluation.table import COLUMNS, table1
from floatlens.findings.knowledge import CONDITIONS
from floatlens.findings.knowledge import table as by_data
from floatlens.findings.style import short
from floatlens.report.section import Table, Words, as_table
from floatlens.report.spelling import listed, number, percent, points


def tables(measured: xr.Dataset) -> list[Table]:
    means = [
        {
            "model": short(str(model)),
            "without passages": without,
            "with passages": with_,
            "gain": gain,
            "data sets": sets,
        }
        for model, without, with_, gain, sets in _means(measured)
    ]
    found = [as_table(f"{measured.attrs['score']}, mean over data sets", pd.DataFrame(means), number)]
    return [*found, _table1(measured)]


def _table1(measured: xr.Dataset) -> Table:
    """The paper's Table 1, as tall as it takes: a row a model, condition and data set reads on a phone too."""
    entries = []
    data, models = measured["data"].values, measured["model"].values
    for model, label in dict.fromkeys(zip(models, data, strict=True)):
        part = measured.isel(sample=(models == model) & (data == label))
        for condition in CONDITIONS:
            scores = {name: float(part[name].sel(condition=condition).mean()) for name, _ in COLUMNS}
            known = {name: value for name, value in scores.items() if value == value}
            entries.append({"model": short(str(model)), "condition": condition, "data": str(label), **known})
    made = table1(entries)
    rows = [[name, *(cell.plain() for cell in cells)] for name, cells in made.rows]
    strong = {(i, j + 1) for i, (_, cells) in enumerate(made.rows) for j, cell in enumerate(cells) if cell.best}
    return Table(
        "Table 1 of the paper: scores in %, best in bold, gain in brackets", ["model", *made.heads], rows, strong
    )


def _means(measured: xr.Dataset) -> list[tuple[str, float, float, float, int]]:
    found = []
    frame = by_data(measured)
    for model in dict.fromkeys(frame["model"]):
        of = frame[frame["model"] == model]
        without, with_ = (float(of.loc[of["condition"] == c, "mean"].mean()) for c in CONDITIONS)
        gain = float(of.drop_duplicates("data")["gain"].mean())
        found.append((str(model), without, with_, gain, of["data"].nunique()))
    return found


def seen(measured: xr.Dataset) -> list[str]:
    score = str(measured.attrs["score"])
    found = []
    frame = by_data(measured).drop_duplicates(["model", "data"])
    for model, without, with_, gain, _ in _means(measured):
        gains = frame[frame["model"] == model].set_index("data")["gain"].dropna()
        text = (
            f"{short(model)} has {percent(without)} right without passages and {percent(with_)} with them ({score}, mean "
            f"over data sets): {points(gain)} points"
        )
        if len(gains) > 1:
            places = (int(gains.argmax()), int(gains.argmin()))
            most, least = (f"{gains.index[at]} ({points(gains.iloc[at])})" for at in places)
            text += f", most on {most} and least on {least}"
        found.append(f"{text}.")
    ranked = sorted(_means(measured), key=lambda each: -each[3])
    if len(ranked) > 1:
        found.append(f"Ordered by what passages add: {listed([short(m[0]) for m in ranked])}.")
    return found


WORDS = Words(
    title="Knowledge",
    question="What do passages add to the answers?",
    views={
        "gain": (
            "Score without and with passages, one panel a data set",
            "Hollow marks are answers from memory, filled marks answers with passages; the number on the right is the gain "
            "in points. Lines are 95 % intervals over questions.",
        )
    },
    tables=tables,
    seen=seen,
)
