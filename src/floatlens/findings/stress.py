"""Stress: how much a model loses when the passages get harder to use.

The stresses are noise, position of the gold passage, layout of multi-hop evidence, number of masks and position of the
question (arXiv 2601.07894 and the robustness tests it builds on). Measured on the answers of `floatlens stress`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation import curves
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.evaluation.metrics import SCORES
from floatlens.evaluation.stress import STRESSES
from floatlens.findings import draw
from floatlens.findings.finding import ReportTable, as_table, declare_finding, register_claim
from floatlens.findings.knowledge import floor
from floatlens.findings.samples import mean_over, per_question
from floatlens.findings.spelling import listed, percent
from floatlens.findings.style import short
from floatlens.findings.verdict import Verdict, change_under, contrast
from floatlens.stats import Array

ROOM = 5  # points: the smallest effect of the claims that compare losses


def applies(answers: pd.DataFrame) -> bool:
    return bool((answers["stress"] != "").any())


def draw_curves(measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
    """Draw the score over the levels, one line per model with its interval, one panel per stress and data set."""
    score = str(measured.attrs["score"])
    numbers = curves.curves(long(measured), score)
    if backend == "none":
        return numbers
    panel = numbers["stress"] + ", " + numbers["data"]
    shown = numbers.assign(panel=panel, variant=numbers["intervention"])
    shown[["mean", "low", "high"]] *= 100
    names = dict(zip(panel, numbers["stress"], strict=True))
    axes = {name: STRESSES[stress].axis if stress in STRESSES else stress for name, stress in names.items()}
    note = f"Mean over up to {numbers['n'].max()} questions; bands and bars: 95 % bootstrap intervals."
    titles, ylabel = {name: name for name in names}, f"{score} (%)"
    return draw.curves(shown, "x", "panel", titles, xlabel=axes, ylabel=ylabel, ylim=(-2, 102), note=note)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    frame = curves.robustness(long(measured), str(measured.attrs["score"]))
    under = ["intervention"] if (frame["intervention"] != "").any() else []
    kept = [c for c in ("stress", "data", "model", *under, "range", "slope", "loss", "levels", "n") if c in frame]
    frame = frame[kept].rename(columns={"range": "best − worst", "loss": "first − last", "n": "questions"})
    frame["model"] = [short(str(m)) for m in frame["model"]]
    return [as_table(f"{measured.attrs['score']} under stress", frame)]


def sentences(measured: xr.Dataset) -> list[str]:
    points = curves.curves(long(measured), str(measured.attrs["score"]))
    found = []
    for (stress, data), part in points[points["intervention"] == ""].groupby(["stress", "data"], sort=False):
        parts = []
        for model, of in part.groupby("model", sort=False):
            worst, best = of.iloc[int(of["mean"].argmin())], of.iloc[int(of["mean"].argmax())]
            if worst["mean"] == best["mean"]:
                parts.append(f"{short(str(model))} stays at {percent(best['mean'])}")
            else:
                ends = (f"{percent(one['mean'])} ({one['level']})" for one in (worst, best))
                parts.append(f"{short(str(model))} lies between {' and '.join(ends)}")
        found.append(f"Under {stress} ({STRESSES[str(stress)].about}; {data}) {listed(parts)}.")
    return found


@declare_finding(applies=applies, draw_curves=draw_curves, tables=tables, sentences=sentences)
def stress(answers: Answers, *, score: str = "accuracy") -> xr.Dataset:
    """Measure how the score of each question changes from level to level, one row per stress, model and question.

    Answers under an intervention are separate rows (`intervention` along sample is empty without one). Claims ignore
    them.
    """
    check_known("score", score, SCORES)
    table = answers_of(answers)
    table = table[table["stress"] != ""] if "stress" in table else table.iloc[:0]
    if table.empty:
        raise FloatLensError("there are no answers under stress; create them with floatlens stress")
    table = table.assign(place=table["stress"] + "=" + table["level"])
    key = ["stress", "model", "data", "intervention", "id"]
    order, coords = per_question(table, key)
    levels = list(dict.fromkeys(table["place"]))
    wide = table.pivot(index=key, columns="place", values=[score, "x"]).reindex(order)
    value, x = (wide.reindex(columns=[(name, level) for level in levels]).to_numpy(float) for name in (score, "x"))
    first, last = _ends(value, x)
    return xr.Dataset(
        {"value": (("sample", "level"), value), "x": (("sample", "level"), x), "loss": ("sample", first - last)},
        coords={**coords, "level": levels},
    )


def _ends(value: Array, x: Array) -> tuple[Array, Array]:
    """Score of each question at the first and at the last level on the axis; NaN if there are not two."""
    first = np.where(np.isfinite(x), x, np.inf).argmin(axis=1)
    last = np.where(np.isfinite(x), x, -np.inf).argmax(axis=1)
    rows, two = np.arange(len(value)), np.isfinite(x).sum(axis=1) > 1
    return np.where(two, value[rows, first], np.nan), np.where(two, value[rows, last], np.nan)


def long(measured: xr.Dataset) -> pd.DataFrame:
    """Return the measurement as a table of answers, one row per question and level."""
    table = measured[["value", "x"]].to_dataframe().reset_index()
    table = table[np.isfinite(table["value"])].rename(
        columns={"value": str(measured.attrs["score"]), "sample_id": "id", "model_kind": "kind"}
    )
    table["level"] = [str(level).partition("=")[2] for level in table["level"]]
    return table


# Claims


def _answers_under(measured: xr.Dataset, stress: str) -> xr.Dataset:
    """The questions under a stress and no intervention."""
    wanted = (measured["stress"].values == stress) & (measured["intervention"].values == "")
    return measured.isel(sample=np.flatnonzero(wanted))


def _not_asked(stress: str) -> Verdict:
    return Verdict(reason=f"there are no answers under {stress}; create them with floatlens stress {stress}")


def weigh_ends_of_axis(levels: list[str], x: Array) -> Array | None:
    """First minus last level on the axis."""
    placed = np.flatnonzero(np.isfinite(x))
    if len(placed) < 2:
        return None
    weights = np.zeros(len(x))
    weights[placed[x[placed].argmin()]], weights[placed[x[placed].argmax()]] = 1.0, -1.0
    return weights


def weigh_ends_against_middle(levels: list[str], x: Array) -> Array | None:
    """Mean of the first and the last position minus the mean of those between."""
    placed = np.flatnonzero(np.isfinite(x))
    if len(placed) < 3:
        return None
    order = placed[x[placed].argsort()]
    weights = np.zeros(len(x))
    weights[order[[0, -1]]], weights[order[1:-1]] = 0.5, -1 / (len(order) - 2)
    return weights


def weigh_together_against_others(levels: list[str], x: Array) -> Array | None:
    """Evidence together, in order, minus the mean of all other layouts."""
    if "together" not in levels or len(levels) < 2:
        return None
    return np.array([1.0 if level == "together" else -1 / (len(levels) - 1) for level in levels])


def _register_comparison(stress: str, weigh: Callable[[list[str], Array], Array | None]) -> None:
    """Register the claim that the MDM loses less under a stress: a weighted sum of scores over levels, ARM minus MDM.

    `weigh(levels, x)` gives the weight of each level that has answers, or None if the levels do not allow the comparison.
    """

    @register_claim(f"stress.{stress}")
    def loses_less(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
        part = _answers_under(measured, stress)
        if not part.sizes["sample"]:
            return _not_asked(stress)
        used = np.flatnonzero(np.isfinite(part["value"].values).any(axis=0))
        levels = [str(level).partition("=")[2] for level in part["level"].values[used]]
        weights = weigh(levels, mean_over(part["x"].values[:, used], 0))
        if weights is None:
            return Verdict(reason=f"the levels of {stress} ({', '.join(levels)}) are too few to compare")
        scores = part["value"].values[:, used]
        found = contrast(part, scores, np.concatenate([-weights, weights]), mdm=mdm, arm=arm)
        if not found.n:
            return found
        easy = np.clip(weights, 0, None)
        mild = contrast(part, scores, np.concatenate([easy, -easy]), mdm=mdm, arm=arm).details
        lost = {kind: -100 * found.details[kind] for kind in ("MDM", "ARM")}
        blocked = floor({kind: 100 * mild[kind] for kind in lost})
        if lost["ARM"] < ROOM:
            room = f"no room: the ARM loses {round(lost['ARM'])} points, so the MDM cannot lose {ROOM} less"
            blocked = blocked or room
        details = {f"{kind}, points": value for kind, value in lost.items()}
        reason = f"{lost['MDM']:.0f} points in the MDM, {lost['ARM']:.0f} in the ARM"
        return replace(found, details=details, reason=reason).unless(blocked)


_register_comparison("noise", weigh_ends_of_axis)
_register_comparison("position", weigh_ends_against_middle)
_register_comparison("layout", weigh_together_against_others)


@register_claim("stress.masks")
def masks_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    part = measured.isel(sample=np.flatnonzero(measured["stress"].values == "masks"))
    if not part.sizes["sample"]:
        return _not_asked("masks")
    found = change_under(part, *_ends(part["value"].values, part["x"].values), mdm=mdm)
    return found.unless(floor({"MDM": 100 * found.details["first"]})) if found.n else found


@register_claim("stress.query")
def query_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    asked, noisy = (_answers_under(measured, stress) for stress in ("query", "noise"))
    if not asked.sizes["sample"] or not noisy.sizes["sample"]:
        return _not_asked("query" if not asked.sizes["sample"] else "noise")
    before, after = (asked["value"].sel(level=f"query={side}").values for side in ("before", "after"))
    keys = [list(zip(part["model"].values, part["sample_id"].values, strict=True)) for part in (asked, noisy)]
    change_of = dict(zip(keys[1], np.abs(noisy["loss"].values), strict=True))
    by_noise = np.array([change_of.get(key, np.nan) for key in keys[0]])
    outcome = change_under(asked, np.abs(before - after), by_noise, mdm=mdm)
    if not outcome.n:
        return outcome
    query, noise = (100 * outcome.details[name] for name in ("first", "last"))
    details = {"changed by the query's position, %": query, "changed by noise, %": noise}
    blocked = f"no room: noise changes {noise:.0f} % of the scores, below {ROOM}" if noise < ROOM else ""
    return replace(outcome, details=details).unless(blocked)


measure, figure, claims = stress.measure, stress.figure, stress.claims
