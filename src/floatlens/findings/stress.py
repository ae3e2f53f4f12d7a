"""Stress: how much a model loses when the passages get harder to use.

The stresses are noise, position of the gold passage, layout of multi-hop evidence, number of masks and position of the
question (arXiv 2601.07894 and the robustness tests it builds on). Measured on the answers of `floatlens stress`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation import curves
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.evaluation.metrics import SCORES
from floatlens.evaluation.stress import STRESSES
from floatlens.findings import style
from floatlens.findings.finding import Finding, ReportTable, as_table, register_claim, register_finding
from floatlens.findings.knowledge import floor
from floatlens.findings.samples import Array, per_question
from floatlens.findings.spelling import listed, percent
from floatlens.findings.style import short
from floatlens.findings.verdict import Outcome, absent, change_under, contrast

ROOM = 5  # points: the smallest effect of the claims that compare losses
DASHES = ("-", "--", ":", "-.", (0, (1, 3)), (0, (5, 1)))  # lines under interventions


class Stress(Finding):
    name = "stress"
    views = ("curves",)
    reads = "answers"
    setting = "passages"
    parts = ("stress",)

    def measure_all(self, answers: Answers, *, score: str = "accuracy") -> xr.Dataset:
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
        value, x = (
            table.pivot(index=key, columns="place", values=name).reindex(index=order, columns=levels).to_numpy(float)
            for name in (score, "x")
        )
        first, last = _ends(value, x)
        return xr.Dataset(
            {"value": (("sample", "level"), value), "x": (("sample", "level"), x), "loss": ("sample", first - last)},
            coords={**coords, "level": levels},
        )

    def applies(self, answers: pd.DataFrame) -> bool:
        return bool((answers["stress"] != "").any())

    def draw_curves(self, measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
        """Draw the score over the levels, one line per model with its interval, one panel per stress and data set."""
        score = str(measured.attrs["score"])
        numbers = curves.curves(long(measured), score)
        if backend == "none":
            return numbers
        looks = style.looks_of(list(dict.fromkeys(numbers["model"])))
        lines = list(dict.fromkeys(zip(numbers["model"], numbers["intervention"], strict=True)))
        under = list(dict.fromkeys(numbers["intervention"]))
        every = list(dict.fromkeys(zip(numbers["stress"], numbers["data"], strict=True)))
        panels, left_out = style.shown(every)
        with style.sheet():
            drawn = style.new_figure(2.55)
            grid = style.panels(drawn, len(panels), style.PANELS, sharey=True)
            for axes, (stress, data) in zip(grid.flat, panels, strict=False):
                part = numbers[(numbers["stress"] == stress) & (numbers["data"] == data)]
                for index, (model, intervention) in enumerate(lines):
                    look = looks[model]
                    if intervention:
                        dashes = DASHES[under.index(intervention) % len(DASHES)]
                        look = {**look, "label": f"{look['label']}, {intervention}", "ls": dashes}
                    drawn_here = part[(part["model"] == model) & (part["intervention"] == intervention)]
                    _line(axes, drawn_here, look, aside=0.08 * (index - (len(lines) - 1) / 2))
                axes.set_title(f"{stress}, {data}")
                axes.set_xlabel(STRESSES[stress].axis if stress in STRESSES else str(stress))
                axes.set_ylim(-2, 102)
            for axes in grid[:, 0]:
                axes.set_ylabel(f"{score} (%)")
            style.legend(drawn, len(looks) if len(lines) == len(looks) else 1)
            n = int(numbers["n"].max())
            style.caption(
                drawn,
                f"Mean over up to {n} questions; bands and bars: 95 % bootstrap intervals.{left_out}",
            )
        return drawn

    def tables(self, measured: xr.Dataset) -> list[ReportTable]:
        frame = curves.robustness(long(measured), str(measured.attrs["score"]))
        under = ["intervention"] if (frame["intervention"] != "").any() else []
        kept = [c for c in ("stress", "data", "model", *under, "range", "slope", "loss", "levels", "n") if c in frame]
        frame = frame[kept].rename(columns={"range": "best − worst", "loss": "first − last", "n": "questions"})
        frame["model"] = [short(str(m)) for m in frame["model"]]
        return [as_table(f"{measured.attrs['score']} under stress", frame)]

    def sentences(self, measured: xr.Dataset) -> list[str]:
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


def _line(axes: Any, part: pd.DataFrame, look: dict[str, Any], aside: float) -> None:
    """Draw levels on the axis as a line, and levels without a position (reversed, shuffled, before …) as points."""
    placed = part[np.isfinite(part["x"])].sort_values("x")
    if len(placed):
        axes.plot(placed["x"], 100 * placed["mean"], **look)
        if (placed["x"] % 1 == 0).all():
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.fill_between(placed["x"], 100 * placed["low"], 100 * placed["high"], color=look["color"], alpha=0.16, lw=0)
    other = part[~np.isfinite(part["x"])]
    if not len(other):
        return
    step = (placed["x"].max() / 2.2 if len(placed) else 1.0) or 1.0
    at = (placed["x"].max() + step if len(placed) else 0.0) + step * np.arange(len(other))
    errors = 100 * np.array([other["mean"] - other["low"], other["high"] - other["mean"]])
    shown = look if not len(placed) else {**look, "label": "_"}
    axes.errorbar(at + aside * step, 100 * other["mean"], yerr=errors, lw=0.9, **{**shown, "ls": "none"})
    ticks = [*(placed["x"] if len(placed) else []), *at]
    labels = [*(f"{x:g}" for x in placed["x"]), *other["level"]]
    axes.set_xticks(ticks, labels, fontsize=6 if len(placed) else 7)


# Claims


def _answers_under(measured: xr.Dataset, stress: str) -> xr.Dataset:
    """The questions under a stress and no intervention."""
    wanted = (measured["stress"].values == stress) & (measured["intervention"].values == "")
    return measured.isel(sample=np.flatnonzero(wanted))


def _compare(
    measured: xr.Dataset,
    stress: str,
    weigh: Callable[[list[str], Array], Array | None],
    mdm: str | None,
    arm: str | None,
) -> Outcome:
    """A weighted sum of the scores over the levels of a stress, ARM minus MDM.

    `weigh(levels, x)` gives the weight of each level that has answers, or None if the levels do not allow the
    comparison.
    """
    part = _answers_under(measured, stress)
    if not part.sizes["sample"]:
        return absent(f"there are no answers under {stress}; create them with floatlens stress {stress}")
    used = np.flatnonzero(np.isfinite(part["value"].values).any(axis=0))
    levels = [str(level).partition("=")[2] for level in part["level"].values[used]]
    x = np.array([np.nan if not np.isfinite(c).any() else np.nanmean(c) for c in part["x"].values[:, used].T])
    weights = weigh(levels, x)
    if weights is None:
        return absent(f"the levels of {stress} ({', '.join(levels)}) are too few to compare")
    both = np.concatenate([-weights, weights])
    found = contrast(part, part["value"].values[:, used], both, mdm=mdm, arm=arm)
    if not found.n:
        return found
    losses = {"MDM": -100 * found.details["MDM"], "ARM": -100 * found.details["ARM"]}
    reason = f"{losses['MDM']:.0f} points in the MDM, {losses['ARM']:.0f} in the ARM"
    easy = np.clip(weights, 0, None)
    mild = contrast(part, part["value"].values[:, used], np.concatenate([easy, -easy]), mdm=mdm, arm=arm).details
    blocked = floor({kind: 100 * mild[kind] for kind in losses})
    if losses["ARM"] < ROOM:
        blocked = blocked or f"no room: the ARM loses {losses['ARM']:.0f} points, so the MDM cannot lose {ROOM} less"
    details = {f"{kind}, points": value for kind, value in losses.items()}
    return replace(found, details=details, reason=reason, blocked=blocked)


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


@register_claim("stress.noise")
def noise_claim(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return _compare(measured, "noise", weigh_ends_of_axis, mdm, arm)


@register_claim("stress.position")
def position_claim(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return _compare(measured, "position", weigh_ends_against_middle, mdm, arm)


@register_claim("stress.layout")
def layout_claim(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return _compare(measured, "layout", weigh_together_against_others, mdm, arm)


@register_claim("stress.masks")
def masks_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    part = measured.isel(sample=np.flatnonzero(measured["stress"].values == "masks"))
    if not part.sizes["sample"]:
        return absent("there are no answers under masks; create them with floatlens stress masks")
    fewest, most = _ends(part["value"].values, part["x"].values)
    found = change_under(part, fewest, most, kind="mdm", model=mdm)
    return replace(found, blocked=floor({"MDM": 100 * found.details["first"]})) if found.n else found


@register_claim("stress.query")
def query_claim(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    changed: dict[str, dict[tuple[str, str], float]] = {}
    for stress in ("query", "noise"):
        part = _answers_under(measured, stress)
        if not part.sizes["sample"]:
            return absent(f"there are no answers under {stress}; create them with floatlens stress {stress}")
        one, other = _ends(part["value"].values, part["x"].values)
        if stress == "query":
            levels = [str(level) for level in part["level"].values]
            one, other = (part["value"].values[:, levels.index(f"query={side}")] for side in ("before", "after"))
        keys = zip(part["model"].values, part["sample_id"].values, strict=True)
        changed[stress] = dict(zip(keys, np.abs(one - other), strict=True))
        if stress == "query":
            asked, by_query = part, np.abs(one - other)
    keys = zip(asked["model"].values, asked["sample_id"].values, strict=True)
    by_noise = np.array([changed["noise"].get(key, np.nan) for key in keys])
    outcome = change_under(asked, by_query, by_noise, kind="mdm", model=mdm)
    if not outcome.n:
        return outcome
    query, noise = (100 * outcome.details[name] for name in ("first", "last"))
    details = {"changed by the query's position, %": query, "changed by noise, %": noise}
    blocked = f"no room: noise changes {noise:.0f} % of the scores, below {ROOM}" if noise < ROOM else ""
    return replace(outcome, details=details, blocked=blocked)


stress = register_finding(Stress())
measure, figure, claims = stress.measure, stress.figure, stress.claims
