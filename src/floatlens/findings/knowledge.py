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
from floatlens.findings import draw, published
from floatlens.findings.finding import ReportTable, as_table, declare_finding, register_claim
from floatlens.findings.samples import parts_of, per_question
from floatlens.findings.spelling import listed, percent, points
from floatlens.findings.style import short
from floatlens.findings.verdict import Verdict, contrast

CONDITIONS = (CLOSED, OPEN)
LABELS = {CLOSED: "without passages", OPEN: "with passages"}
LEAST = 20  # percent correct below which a model has too little to gain or lose


def applies(answers: pd.DataFrame) -> bool:
    return set(CONDITIONS) <= set(answers["condition"])


def draw_gain(measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
    """Draw the score of each model without and with passages, one panel per data set; `paper` adds Table 1."""
    beside = published.knowledge_rows(measured.attrs["score"]) if paper else None
    numbers = pd.concat([table(measured), beside], ignore_index=True)
    if backend == "none":
        return numbers
    shown = numbers.assign(condition=numbers["condition"].map(LABELS))
    shown[["mean", "low", "high"]] *= 100
    note = "Lines: 95 % intervals over questions."
    return draw.points(shown, "condition", "data", xlabel=f"{numbers['score'].iloc[0]} (%)", note=note)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    means = _means(measured)
    title = f"{measured.attrs['score']}, mean over data sets"
    return [as_table(title, means.assign(model=means["model"].map(short))), _table1(measured)]


def sentences(measured: xr.Dataset) -> list[str]:
    found, means = [], _means(measured)
    frame = table(measured).drop_duplicates(["model", "data"])
    for model, without, with_, gain, _ in means.itertuples(index=False):
        gains = frame[frame["model"] == model].set_index("data")["gain"].dropna()
        text = (
            f"{short(model)} answers {percent(without)} correctly without passages and {percent(with_)} with them "
            f"({measured.attrs['score']}, mean over data sets): {points(gain)} points"
        )
        if len(gains) > 1:
            most, least = (f"{name} ({points(gains[name])})" for name in (gains.idxmax(), gains.idxmin()))
            text += f", most on {most} and least on {least}"
        found.append(f"{text}.")
    if len(means) > 1:
        ranked = means.sort_values("gain", ascending=False, kind="stable")["model"]
        found.append(f"Ordered by gain from passages: {listed(list(map(short, ranked)))}.")
    return found


@declare_finding(applies=applies, draw_gain=draw_gain, tables=tables, sentences=sentences)
def knowledge(answers: Answers, *, score: str = "accuracy") -> xr.Dataset:
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


def table(answers: Any, **options: Any) -> pd.DataFrame:
    """Return one row per model, data set and condition: mean with interval, and the gain of open over closed book."""
    measured = knowledge.measure(answers, **options)
    name, rows = str(measured.attrs["score"]), []
    for (model, data), part in _by_data(measured):
        gain = stats.percentile_mean(part["gain"].values)
        for index, condition in enumerate(CONDITIONS):
            found = stats.percentile_mean(part[name].values[:, index])
            about: dict[str, Any] = {"model": model, "data": data, "condition": condition, "score": name}
            numbers = {"mean": found.value, "low": found.low, "high": found.high, "n": found.n}
            rows.append({**about, **numbers, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high})
    return pd.DataFrame(rows)


def _by_data(measured: xr.Dataset) -> list[tuple[tuple[str, str], xr.Dataset]]:
    """Model, data set, and the questions of both."""
    return [
        ((model, name), part.isel(sample=part["data"].values == name))
        for model, part in parts_of(measured)
        for name in dict.fromkeys(part["data"].values)
    ]


def _means(measured: xr.Dataset) -> pd.DataFrame:
    """Return one row per model: scores without and with passages, gain, mean over data sets, and their number."""
    frame = table(measured)
    scores = frame.groupby(["model", "condition"])["mean"].mean().unstack()[list(CONDITIONS)].rename(columns=LABELS)
    gain = frame.drop_duplicates(["model", "data"]).groupby("model")["gain"]
    found = scores.assign(gain=gain.mean(), **{"data sets": gain.size()})
    return found.loc[list(dict.fromkeys(frame["model"]))].reset_index()


def _table1(measured: xr.Dataset) -> ReportTable:
    """The scores of Table 1, one row per data set and model, so that it can be read on a phone."""
    rows = []
    for (model, data), part in sorted(_by_data(measured), key=lambda each: str(each[0][1])):
        scores = {
            f"{text} {how}": 100 * float(part[name].sel(condition=condition).mean())
            for how, condition in (("without", CLOSED), ("with passages", OPEN))
            for text, name in (("accuracy", "accuracy"), ("F1", "f1"))
        }
        rows.append({"data": str(data), "model": short(model), **scores})
    return as_table("The paper's Table 1 on these models, scores in %", rows)


def _contrast(measured: xr.Dataset, weights: tuple[float, ...], mdm: str | None, arm: str | None) -> Verdict:
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
def gains_more(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    return _contrast(measured, (-1.0, 1.0, 1.0, -1.0), mdm, arm)


@register_claim("knowledge.twice")
def gains_twice(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    found = _contrast(measured, (-1.0, 1.0, 2.0, -2.0), mdm, arm)
    if not found.n:
        return found
    of = found.details
    room, twice = 100 - (of["with passages, MDM, %"] - of["gain of the MDM, points"]), 2 * of["gain of the ARM, points"]
    blocked = floor({kind: of[f"with passages, {kind}, %"] for kind in ("MDM", "ARM")})
    if twice > room:
        blocked = f"no room: twice the ARM's gain is {twice:.0f} points, the MDM could gain {room:.0f}"
    return found.unless(blocked)


@register_claim("knowledge.ahead")
def ahead(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    return _contrast(measured, (0.0, 1.0, 0.0, -1.0), mdm, arm)


measure, figure, claims = knowledge.measure, knowledge.figure, knowledge.claims
