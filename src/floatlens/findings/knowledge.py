"""Knowledge: how much the passages improve a model's answers.

Table 1 of arXiv 2601.07894: answers with and without passages, and the gain from them. Measured on the answers of
`floatlens eval --both`, question by question. The paper states that masked diffusion models (MDMs) gain twice as much; in
its own table LLaDA gains 3.5 times as much as Llama and Dream 1.37 times as much as Qwen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens import stats
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.evaluation.metrics import SCORES
from floatlens.evaluation.sources import CLOSED, OPEN
from floatlens.findings import published, style
from floatlens.findings.finding import Finding, ReportTable, as_table, register_claim, register_finding
from floatlens.findings.samples import parts_of, per_question
from floatlens.findings.spelling import listed, number, percent, points
from floatlens.findings.style import short
from floatlens.findings.verdict import Outcome, contrast

CONDITIONS = (CLOSED, OPEN)
LEAST = 20  # percent correct below which a model has too little to gain or lose


class Knowledge(Finding):
    name = "knowledge"
    views = ("gain",)
    reads = "answers"
    setting = "passages"
    parts = ("knowledge",)

    def measure_all(self, answers: Answers, *, score: str = "accuracy") -> xr.Dataset:
        """Measure the gain of the answers from passages, one row per model and question."""
        check_known("score", score, SCORES)
        rows = answers_of(answers)
        rows = rows[rows["condition"].isin(CONDITIONS)]
        if rows.empty:
            raise FloatLensError(
                "the answers are neither open-book nor closed-book; create them with floatlens eval --both"
            )
        order, coords = per_question(rows, ("model", "data", "id"))
        wide = rows.pivot(index=["model", "data", "id"], columns="condition", values=list(SCORES)).reindex(order)
        wide = wide.reindex(columns=pd.MultiIndex.from_product([SCORES, CONDITIONS]))
        scores = {name: wide[name].to_numpy(float) for name in SCORES}
        gain = scores[score][:, 1] - scores[score][:, 0]
        return xr.Dataset(
            {**{name: (("sample", "condition"), values) for name, values in scores.items()}, "gain": ("sample", gain)},
            coords={**coords, "condition": list(CONDITIONS)},
        )

    def applies(self, answers: pd.DataFrame) -> bool:
        return set(CONDITIONS) <= set(answers["condition"])

    def draw_gain(self, measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
        """Draw the score without (hollow) and with passages (filled) of each model, one panel per data set.

        `paper` adds a panel with the averages of Table 1.
        """
        numbers = table(measured)
        if paper:
            numbers = pd.concat([numbers, published.knowledge_rows(measured.attrs["score"])], ignore_index=True)
        if backend == "none":
            return numbers
        looks, every = style.looks_of(list(dict.fromkeys(numbers["model"]))), list(dict.fromkeys(numbers["data"]))
        sets = every if len(every) <= style.PANELS else [*every[: style.PANELS - 1], every[-1]]
        columns = 3 if len(sets) == 3 else min(2, len(sets))
        rows = -(-len(sets) // columns)
        with style.sheet():
            drawn = style.new_figure(0.9 + (0.5 + 0.28 * len(looks)) * rows)
            grid = style.panels(drawn, len(sets), columns, sharex=True)
            for axes, data in zip(grid.flat, sets, strict=False):
                here = [model for model in looks if ((numbers["data"] == data) & (numbers["model"] == model)).any()]
                for y, model in enumerate(here):
                    part = numbers[(numbers["data"] == data) & (numbers["model"] == model)].set_index("condition")
                    _arrow(axes, y, part, {name: looks[model][name] for name in ("color", "marker")})
                axes.set_title(str(data))
                axes.set_yticks(range(len(here)), here)
                axes.set_ylim(len(here) - 0.5, -0.5)
                axes.set_xlim(-2, 102)
            for column in range(columns):
                lowest = grid[(len(sets) - 1 - column) // columns, column]
                lowest.set_xlabel(f"{numbers['score'].iloc[0]} (%)")
                lowest.tick_params(labelbottom=True)
            about = (
                "Hollow: without passages; filled: with; lines: 95 % intervals over questions; right: gain in points."
            )
            style.caption(drawn, about + style.shown(every)[1])
        return drawn

    def tables(self, measured: xr.Dataset) -> list[ReportTable]:
        names = ("without passages", "with passages", "gain", "data sets")
        means = [{"model": short(model), **dict(zip(names, found, strict=True))} for model, *found in _means(measured)]
        return [as_table(f"{measured.attrs['score']}, mean over data sets", means), _table1(measured)]

    def sentences(self, measured: xr.Dataset) -> list[str]:
        score = str(measured.attrs["score"])
        found = []
        frame = table(measured).drop_duplicates(["model", "data"])
        for model, without, with_, gain, _ in _means(measured):
            gains = frame[frame["model"] == model].set_index("data")["gain"].dropna()
            text = (
                f"{short(model)} answers {percent(without)} correctly without passages and {percent(with_)} with them "
                f"({score}, mean over data sets): {points(gain)} points"
            )
            if len(gains) > 1:
                indices = (int(gains.argmax()), int(gains.argmin()))
                most, least = (f"{gains.index[at]} ({points(gains.iloc[at])})" for at in indices)
                text += f", most on {most} and least on {least}"
            found.append(f"{text}.")
        ranked = sorted(_means(measured), key=lambda each: -each[3])
        if len(ranked) > 1:
            found.append(f"Ordered by gain from passages: {listed([short(m[0]) for m in ranked])}.")
        return found


def table(answers: Any, **options: Any) -> pd.DataFrame:
    """Return one row per model, data set and condition: mean with interval, and the gain of open over closed book."""
    measured = knowledge.measure(answers, **options)
    name, rows = str(measured.attrs["score"]), []
    for model, part in parts_of(measured):
        for data in dict.fromkeys(part["data"].values):
            here = part["data"].values == data
            gain = stats.percentile_mean(part["gain"].values[here])
            for index, condition in enumerate(CONDITIONS):
                found = stats.percentile_mean(part[name].values[here, index])
                about = {"model": model, "data": data, "condition": condition, "score": name}
                numbers = {"mean": found.value, "low": found.low, "high": found.high, "n": found.n}
                rows.append({**about, **numbers, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high})
    return pd.DataFrame(rows)


def _table1(measured: xr.Dataset) -> ReportTable:
    """The scores of Table 1, one row per data set and model, so that it can be read on a phone; best in bold."""
    data, models = measured["data"].values, measured["model"].values
    rows, best, strong = [], dict[tuple[str, int], float](), set[tuple[int, int]]()
    scores = []
    for model, label in sorted(dict.fromkeys(zip(models, data, strict=True)), key=lambda pair: str(pair[1])):
        part = measured.isel(sample=(models == model) & (data == label))
        found = [100 * float(part[name].sel(condition=how).mean()) for how in CONDITIONS for name in ("accuracy", "f1")]
        for column, value in enumerate(found):
            best[str(label), column] = max(value, best.get((str(label), column), value))
        scores.append((str(label), found))
        rows.append([str(label), short(str(model)), *(number(value) for value in found)])
    for row, (label, found) in enumerate(scores):
        strong |= {(row, column + 2) for column, value in enumerate(found) if value == best[label, column]}
    heads = [f"{name} {how}" for how in ("without", "with passages") for name in ("accuracy", "F1")]
    return ReportTable("The paper's Table 1 on these models, scores in %", ["data", "model", *heads], rows, strong)


def _means(measured: xr.Dataset) -> list[tuple[str, float, float, float, int]]:
    found = []
    frame = table(measured)
    for model in dict.fromkeys(frame["model"]):
        of = frame[frame["model"] == model]
        without, with_ = (float(of.loc[of["condition"] == c, "mean"].mean()) for c in CONDITIONS)
        gain = float(of.drop_duplicates("data")["gain"].mean())
        found.append((str(model), without, with_, gain, of["data"].nunique()))
    return found


def _arrow(axes: Any, y: int, part: pd.DataFrame, look: dict[str, Any]) -> None:
    for condition, fill in ((CLOSED, "white"), (OPEN, look["color"])):
        here = 100 * part.loc[part.index == condition, ["mean", "low", "high"]].to_numpy(float)
        if len(here) and np.isfinite(here).all():
            mean, low, high = here[0]
            axes.plot([low, high], [y, y], color=look["color"], lw=0.8, alpha=0.6)
            axes.plot([mean], [y], ls="none", mfc=fill, mec=look["color"], ms=5, **look)
    if set(CONDITIONS) <= set(part.index) and np.isfinite(part["gain"].iloc[0]):
        axes.text(
            1.02,
            y,
            points(part["gain"].iloc[0]),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=6,
            color=look["color"],
        )


def _contrast(measured: xr.Dataset, weights: tuple[float, ...], mdm: str | None, arm: str | None) -> Outcome:
    """Weights of (MDM closed book, MDM open book, ARM closed book, ARM open book), with the gains in the details."""
    scores = measured[str(measured.attrs["score"])].values
    found = contrast(measured, scores, np.array(weights), mdm=mdm, arm=arm)
    if not found.n:
        return found
    gain = contrast(measured, scores, np.array([-1.0, 1.0, 1.0, -1.0]), mdm=mdm, arm=arm).details
    level = contrast(measured, scores, np.array([0.0, 1.0, 0.0, -1.0]), mdm=mdm, arm=arm).details
    details = {f"gain of the {kind}, points": 100 * gain[kind] for kind in ("MDM", "ARM")}
    details |= {f"with passages, {kind}, %": 100 * level[kind] for kind in ("MDM", "ARM")}
    reason = f"passages add {round(100 * gain['MDM'])} points to the MDM and {round(100 * gain['ARM'])} to the ARM"
    return replace(found, details=details, reason=reason)


def floor(percents: Mapping[str, float]) -> str:
    """Why scores are too low to gain or lose by a condition; empty if none is below 20 %."""
    low = [f"{kind} {value:.0f} %" for kind, value in percents.items() if value < LEAST]
    return f"floor: {', '.join(low)} correct, below {LEAST} %" if low else ""


@register_claim("knowledge.gain")
def gains_more(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return _contrast(measured, (-1.0, 1.0, 1.0, -1.0), mdm, arm)


@register_claim("knowledge.twice")
def gains_twice(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    found = _contrast(measured, (-1.0, 1.0, 2.0, -2.0), mdm, arm)
    if not found.n:
        return found
    gain, scores = ({kind: found.details[f"{of}{kind}, {unit}"] for kind in ("MDM", "ARM")}
                    for of, unit in (("gain of the ", "points"), ("with passages, ", "%")))  # fmt: skip
    room = 100 - (scores["MDM"] - gain["MDM"])
    blocked = floor(scores)
    if 2 * gain["ARM"] > room:
        blocked = f"no room: twice the ARM's gain is {2 * gain['ARM']:.0f} points, the MDM could gain {room:.0f}"
    return replace(found, blocked=blocked)


@register_claim("knowledge.ahead")
def ahead(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return _contrast(measured, (0.0, 1.0, 0.0, -1.0), mdm, arm)


knowledge = register_finding(Knowledge())
measure, figure, claims = knowledge.measure, knowledge.figure, knowledge.claims
