"""Stress: does a model that floats lose less when the passages get harder to use?

Noise, place of the gold passage, layout of multi-hop evidence, number of masks, place of the question (arXiv 2601.07894
and the robustness tests it builds on). Measured on the answers of `floatlens stress`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import Answers, answers_of
from floatlens.evaluation.metrics import SCORES
from floatlens.evaluation.stress import curves
from floatlens.evaluation.stress.stress import STRESSES
from floatlens.findings import style
from floatlens.findings.finding import Finding, ReportText, Table, as_table, register_claim, register_finding
from floatlens.findings.samples import Array, is_measured, mean_over
from floatlens.findings.sides import NAN, compare, names, side
from floatlens.findings.spelling import listed, number, percent
from floatlens.findings.style import short
from floatlens.findings.verdict import Verdict
from floatlens.stats import INCONCLUSIVE, judge_scores, too_few
from floatlens.version import __version__

VIEWS = ("curves",)


def measure(answers: Answers | xr.Dataset, *, score: str = "accuracy") -> xr.Dataset:
    """How does the score of each question change from level to level? One row a stress, model and question.

    | variable | dims | what |
    |---|---|---|
    | value | sample, level | score of the answer; NaN where the stress has no such level or there was no answer |
    | x | sample, level | the level's place on the axis, NaN if it has none |
    | loss | sample | first minus last level on the axis |
    """
    if isinstance(answers, xr.Dataset):
        return answers
    if score not in SCORES:
        raise FloatLensError(f"score {score!r} is not known; use one of {', '.join(SCORES)}")
    table = answers_of(answers)
    table = table[table["stress"] != ""] if "stress" in table else table.iloc[:0]
    if table.empty:
        raise FloatLensError("there are no answers under stress; make them with floatlens stress")
    key = ["stress", "model", "data", "id"]
    order = pd.MultiIndex.from_frame(table[key].drop_duplicates())
    levels = list(dict.fromkeys(table["condition"]))
    value, x = (
        table.pivot(index=key, columns="condition", values=name).reindex(index=order, columns=levels).to_numpy(float)
        for name in (score, "x")
    )
    stress, models, data, ids = (order.get_level_values(i).to_numpy(object) for i in range(4))
    kinds = table.drop_duplicates("model").set_index("model")["kind"]
    return xr.Dataset(
        {"value": (("sample", "level"), value), "x": (("sample", "level"), x), "loss": ("sample", _loss(value, x))},
        coords={
            "sample": np.arange(len(order)),
            "level": levels,
            "stress": ("sample", stress),
            "model": ("sample", models),
            "data": ("sample", data),
            "sample_id": ("sample", np.array([f"{d}: {i}" for d, i in zip(data, ids, strict=True)], object)),
            "model_kind": ("sample", kinds.reindex(models).to_numpy(str)),
        },
        attrs={"finding": "stress", "score": score, "rule": "", "floatlens": __version__},
    )


def _loss(value: Array, x: Array) -> Array:
    """First minus last level on the axis, for each question."""
    first = np.where(np.isfinite(x), x, np.inf).argmin(axis=1)
    last = np.where(np.isfinite(x), x, -np.inf).argmax(axis=1)
    rows = np.arange(len(value))
    return np.where(np.isfinite(x).sum(axis=1) > 1, value[rows, first] - value[rows, last], np.nan)


def long(measured: xr.Dataset) -> pd.DataFrame:
    """The measurement as a table of answers, one row a question and level."""
    table = measured[["value", "x"]].to_dataframe().reset_index()
    table = table[np.isfinite(table["value"])].rename(
        columns={"value": str(measured.attrs["score"]), "sample_id": "id", "model_kind": "kind"}
    )
    table["level"] = [str(level).partition("=")[2] for level in table["level"]]
    return table


def figure(
    answers: Answers | xr.Dataset, *, score: str = "accuracy", view: str = "curves", backend: str = "matplotlib"
) -> Figure | pd.DataFrame:
    """Score over the levels, one line a model with its 95 % interval, a panel a stress and data set."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = measure(answers, score=score)
    numbers = curves.curves(long(measured), str(measured.attrs["score"]))
    if backend == "none":
        return numbers
    models = list(dict.fromkeys(numbers["model"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    panels = list(dict.fromkeys(zip(numbers["stress"], numbers["data"], strict=True)))
    columns = min(3, len(panels))
    with style.sheet():
        drawn = style.new_figure(0.8 + 1.75 * -(-len(panels) // columns))
        grid = drawn.subplots(-(-len(panels) // columns), columns, squeeze=False, sharey=True)
        for axes, (stress, data) in zip(grid.flat, panels, strict=False):
            part = numbers[(numbers["stress"] == stress) & (numbers["data"] == data)]
            for place, model in enumerate(models):
                look = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                _line(axes, part[part["model"] == model], look, aside=0.08 * (place - (len(models) - 1) / 2))
            axes.set_title(f"{stress}, {data}")
            axes.set_xlabel(STRESSES[stress].axis if stress in STRESSES else str(stress))
            axes.set_ylim(-2, 102)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[:, 0]:
            axes.set_ylabel(f"{measured.attrs['score']} (%)")
        drawn.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
        n = int(numbers["n"].max())
        style.caption(drawn, f"Mean over up to {n} questions; bands and bars: 95 % bootstrap intervals.")
    return drawn


def _line(axes: Any, part: pd.DataFrame, look: dict[str, Any], aside: float) -> None:
    """Levels on the axis as a line; those without a place (reversed, shuffled, before …) as points beside it."""
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
    axes.errorbar(at + aside * step, 100 * other["mean"], yerr=errors, ls="none", lw=0.9, **shown)
    ticks = [*(placed["x"] if len(placed) else []), *at]
    labels = [*(f"{x:g}" for x in placed["x"]), *other["level"]]
    axes.set_xticks(ticks, labels)


def _of(answers: Answers | xr.Dataset, stress: str, score: str) -> xr.Dataset:
    measured = answers if is_measured(answers, "stress") else measure(answers, score=score)  # type: ignore[arg-type]
    return measured.isel(sample=np.flatnonzero(measured["stress"].values == stress))


def _points(found: tuple[float, float], unit: dict[str, float]) -> tuple[str, str]:
    verdict = judge_scores(found)
    reason = f"{unit['MDM']:.1f} points for the MDM, {unit['ARM']:.1f} for the ARM"
    return verdict, reason if verdict != INCONCLUSIVE else f"the interval holds zero ({reason})"


@register_claim(
    "stress.noise",
    finding="stress",
    sentence="",
    source="arXiv 2601.07894",
)
def noise_claim(
    answers: Answers | xr.Dataset, *, score: str = "accuracy", mdm: str | None = None, arm: str | None = None
) -> Verdict:
    """The MDM loses less under noise than the ARM."""
    claim, statistic = "The MDM loses less under noise than the ARM", "loss from no noise to the most, ARM minus MDM"
    measured = _of(answers, "noise", score)
    if not measured.sizes["sample"]:
        return _absent("noise", claim, statistic)

    def decide(interval: tuple[float, float], sides: dict[str, Array]) -> tuple[str, str, dict[str, Any]]:
        losses = {name.upper(): 100 * float(mean_over(sides[f"{name}_values"], 0)) for name in ("mdm", "arm")}
        return *_points(interval, losses), {f"{name} loss, points": value for name, value in losses.items()}

    return compare(
        measured,
        measured["loss"].values,
        finding="stress",
        claim=claim,
        statistic=statistic,
        mdm=mdm,
        arm=arm,
        decide=decide,
        sign=-1,
    )


@register_claim(
    "stress.position",
    finding="stress",
    sentence="",
    source="arXiv 2601.07894",
)
def position_claim(
    answers: Answers | xr.Dataset, *, score: str = "accuracy", mdm: str | None = None, arm: str | None = None
) -> Verdict:
    """The MDM is flatter than the ARM over the place of the gold passage.

    The range of a curve is best minus worst place. Questions are drawn together for both models, with all their places.
    """
    claim = "The MDM is flatter than the ARM over the place of the gold passage"
    statistic = "range over the places of the gold passage, ARM minus MDM, mean over data sets"
    measured = _of(answers, "position", score)
    if not measured.sizes["sample"]:
        return _absent("position", claim, statistic)
    rows = {"MDM": side(measured, "mdm", mdm), "ARM": side(measured, "arm", arm)}
    models = names(measured, rows["MDM"]) + names(measured, rows["ARM"])
    for kind, found in rows.items():
        if not len(found):
            return _absent(
                "position", claim, statistic, f"there is no {kind} among the answers to compare with", models
            )
    pairs = _paired(measured, rows["MDM"], rows["ARM"])
    n = sum(len(both) for both in pairs)
    if reason := too_few(n, "questions"):
        return Verdict("stress", claim, statistic, float("nan"), NAN, INCONCLUSIVE, "", n, models, reason)
    ranges = {
        kind: 100 * float(np.mean([_range(both[:, i].mean(axis=0)) for both in pairs])) for i, kind in enumerate(rows)
    }
    drawn = np.mean([_drawn(both) for both in pairs], axis=0)
    low, high = np.quantile(drawn, [0.025, 0.975])
    interval = (float(low), float(high))
    verdict, reason = _points(interval, ranges)
    value = (ranges["ARM"] - ranges["MDM"]) / 100
    details = {f"{kind} range, points": found for kind, found in ranges.items()}
    return Verdict("stress", claim, statistic, value, interval, verdict, "", n, models, reason, details)


def _paired(measured: xr.Dataset, mdm: Array, arm: Array) -> list[Array]:
    """For each data set the scores (question, model, level) of the questions that both sides answered at every level."""
    found = []
    for data in dict.fromkeys(measured["data"].values):
        here = {
            name: [i for i in rows if measured["data"].values[i] == data] for name, rows in (("m", mdm), ("a", arm))
        }
        used = np.isfinite(measured["value"].values[here["m"] + here["a"]]).any(axis=0)
        scores: dict[str, dict[str, Array]] = {}
        for name, rows in here.items():
            values = measured["value"].values[rows][:, used]
            ids = measured["sample_id"].values[rows]
            scores[name] = {str(i): v for i, v in zip(ids, values, strict=True) if np.isfinite(v).all()}
        common = [i for i in scores["m"] if i in scores["a"]]
        if common:
            found.append(np.stack([np.stack([scores["m"][i], scores["a"][i]]) for i in common]))
    return found


def _range(means: Array) -> Array:
    return np.asarray(means.max(axis=-1) - means.min(axis=-1))


def _drawn(both_NMX: Array) -> Array:
    """Range of the ARM minus range of the MDM, over draws of the same questions for both."""
    count, models, levels = both_NMX.shape
    means = curves.resampled(both_NMX.reshape(count, models * levels)).reshape(-1, models, levels)
    return np.asarray(_range(means[:, 1]) - _range(means[:, 0]))


def _absent(stress: str, claim: str, statistic: str, reason: str = "", models: tuple[str, ...] = ()) -> Verdict:
    reason = reason or f"there are no answers under {stress}; make them with floatlens stress {stress}"
    return Verdict("stress", claim, statistic, float("nan"), NAN, INCONCLUSIVE, "", 0, models, reason)


def tables(measured: xr.Dataset) -> list[Table]:
    frame = _robustness(measured)
    kept = [c for c in ("stress", "data", "model", "range", "slope", "loss", "levels", "n") if c in frame]
    frame = frame[kept].rename(columns={"range": "best − worst", "loss": "first − last", "n": "questions"})
    frame["model"] = [short(str(m)) for m in frame["model"]]
    return [as_table(f"{measured.attrs['score']} under stress", frame, number)]


def _robustness(measured: xr.Dataset) -> pd.DataFrame:
    return curves.robustness(long(measured), str(measured.attrs["score"]))


def sentences(measured: xr.Dataset) -> list[str]:
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


REPORT = ReportText(
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
    sentences=sentences,
)
stress = register_finding(
    Finding(
        "stress",
        paper="robustness",
        measure=measure,
        figure=figure,
        views=VIEWS,
        reads="answers",
        report=REPORT,
        part="stress",
        applies=lambda answers: bool((answers["stress"] != "").any()),
    )
)
claims = stress.claims
