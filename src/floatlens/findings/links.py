"""Links: whether the behaviour of anchors predicts the answers, question by question.

The paper reports both floating and the use of knowledge (arXiv 2601.07894); whether they are related within a model is
measured as a rank correlation over questions, from the traces of short questions and the answers to the same questions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.anchors import baseline
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import answers_of
from floatlens.findings import definitions, knowledge, stress, style
from floatlens.findings.drift import floating_of
from floatlens.findings.finding import Finding, declare_finding, register_claim
from floatlens.findings.positions import anchors_of
from floatlens.findings.samples import mean, mean_over, question_of
from floatlens.findings.verdict import Verdict, no_sink, sides_of
from floatlens.stats import NAN, NO_INTERVAL, Array, Interval, bonett_wright, spearman
from floatlens.trace.trace import Trace

PAIRS = {"gain": ("floating", "gain from passages"), "middle": ("sink", "loss in the middle")}


def measure_all(samples: Any, **options: Any) -> xr.Dataset:
    if not isinstance(samples, tuple) or len(samples) != 2:
        raise FloatLensError("links needs traces and answers together: measure((traces, answers))")
    found = Finding.measure_all(links, samples[0], **options)
    table = answers_of(samples[1])
    pairs = zip(found["model"].values, found["sample_id"].values, strict=True)
    keys = [(model, question_of(sample)) for model, sample in pairs]
    scores = {"gain": _gain(table), "middle": _middle(table)}
    return found.assign({name: ("sample", [of.get(key, np.nan) for key in keys]) for name, of in scores.items()})


def applies(answers: pd.DataFrame) -> bool:
    return knowledge.knowledge.applies(answers)


def draw_scatter(measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
    """Draw one point per question and model: floating against gain, sink against loss in the middle."""
    data = _points(measured)
    if backend == "none":
        return data
    looks = style.looks_of(list(dict.fromkeys(measured["model"].values)))
    pairs = [pair for pair in PAIRS if (data["pair"] == pair).any()]
    with style.sheet():
        drawn = style.new_figure(2.6, width=3.4 * max(1, len(pairs)))
        grid = drawn.subplots(1, max(1, len(pairs)), squeeze=False)[0]
        for axes, pair in zip(grid, pairs, strict=False):
            for model, look in looks.items():
                part = data[(data["pair"] == pair) & (data["model"] == model)]
                axes.plot(part["x"], part["y"], ls="none", ms=3.5, alpha=0.6, **look)
            axes.set(xlabel={"gain": "floating", "middle": "sink (% beyond uniform)"}[pair], ylabel=PAIRS[pair][1])
        if pairs:
            style.legend(drawn)
        style.caption(drawn, "One point per question.")
    return drawn


def row(part: xr.Dataset) -> dict[str, Any]:
    return {
        "floating and gain": spearman(part["floating"].values, part["gain"].values),
        "sink and loss in the middle": spearman(part["sink"].values, part["middle"].values),
        "questions": int(np.isfinite(part["gain"].values).sum()),
    }


@declare_finding(measure_all=measure_all, applies=applies, draw_scatter=draw_scatter, row=row)
def links(trace: Trace, *, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure, per model and question, numbers of the trace and scores of the answers; samples are (traces, answers)."""
    a, anchors = anchors_of(trace, rule)
    floating_L = floating_of(definitions.anchor_mass(np.nan_to_num(a.values), anchors))
    sink_L = 100 * (a.values - baseline(a.values, trace.attention_kind))[..., 0].mean(axis=0)
    return xr.Dataset({"floating": mean(floating_L), "sink": mean(sink_L)})


def _gain(answers: pd.DataFrame) -> dict[tuple[str, str], float]:
    asked = set(answers["condition"]) & set(knowledge.CONDITIONS)
    return _by_question(knowledge.measure(answers), "gain") if asked else {}


def _middle(answers: pd.DataFrame) -> dict[tuple[str, str], float]:
    if "stress" not in answers or not (answers["stress"] == "position").any():
        return {}
    found = stress.measure(answers[answers["stress"] == "position"])
    weights = stress.weigh_ends_against_middle([], mean_over(found["x"].values, 0))
    if weights is None:
        return {}
    lost = np.round(found["value"].values @ weights, 12)  # equal losses must be equal, because ranks are compared
    return _by_question(found.assign(middle=("sample", lost)), "middle")


def _by_question(measured: xr.Dataset, name: str) -> dict[tuple[str, str], float]:
    keys = zip(measured["model"].values, measured["sample_id"].values, strict=True)
    return dict(zip(keys, measured[name].values.tolist(), strict=True))


def _points(measured: xr.Dataset) -> pd.DataFrame:
    frame = measured.drop_vars("sample").to_dataframe().rename(columns={"sample_id": "sample"})
    parts = [frame.assign(pair=pair, x=frame[x], y=frame[pair]) for pair, (x, _) in PAIRS.items()]
    columns = ["pair", "model", "sample", "x", "y"]
    return pd.concat(parts, ignore_index=True)[columns].dropna(subset=["x", "y"], ignore_index=True)


def _correlate(measured: xr.Dataset, x: str, y: str, kind: str, model: str | None) -> Verdict:
    [rows], known = sides_of(measured, **{kind: model})
    if known.reason:
        return known
    there = rows[np.isfinite(measured[x].values[rows] + measured[y].values[rows])]
    if not len(there):
        return replace(known, reason="no traced question was also answered in the way that the claim needs")
    sets = np.array([question_of(str(sample)).rpartition(": ")[0] for sample in measured["sample_id"].values[there]])
    value, interval, within = stratified(measured[x].values[there], measured[y].values[there], sets)
    same = f"{'the ' + PAIRS['gain'][1] if y == 'gain' else PAIRS['middle'][1]} is the same for all questions"
    n = sum(int((sets == name).sum()) for name in within)
    details = {f"within {name}": r for name, r in within.items()}
    return replace(known, value=value, interval=interval, n=n, details=details, reason="" if within else same)


def stratified(x_N: Array, y_N: Array, sets_N: Array) -> tuple[float, Interval, dict[str, float]]:
    """Rank correlation within data sets: the mean of Fisher's z weighted by n − 3, its interval, and that of each set.

    Over all questions together, sets that differ in both numbers would correlate without any link between questions. Sets
    of fewer than 4 questions, or where a number is the same for all of them, are left out.

    >>> x, sets = np.tile(np.arange(8.0), 2), np.repeat(["a", "b"], 8)
    >>> value, _, within = stratified(x + 10 * (sets == "b"), 10 * (sets == "b") - x, sets)
    >>> round(value, 6), sorted(within)
    (-1.0, ['a', 'b'])
    """
    within = {str(name): spearman(x_N[sets_N == name], y_N[sets_N == name]) for name in dict.fromkeys(sets_N)}
    sizes = {name: int((sets_N == name).sum()) - 3 for name in within}
    within = {name: r for name, r in within.items() if np.isfinite(r) and sizes[name] > 0}
    if not within:
        return NAN, NO_INTERVAL, {}
    z = np.arctanh(np.clip(list(within.values()), -1 + 1e-12, 1 - 1e-12))
    weights = np.array([sizes[name] for name in within])
    value = float(np.tanh(z @ weights / weights.sum()))
    low, high = bonett_wright(value, weights.sum() + 3)
    return value, (float(low), float(high)), within


@register_claim("links.gain")
def floating_predicts_gain(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    return _correlate(measured, "floating", "gain", "mdm", mdm)


@register_claim("links.sink")
def sink_predicts_loss(measured: xr.Dataset, *, arm: str | None = None) -> Verdict:
    return _correlate(measured, "sink", "middle", "arm", arm).unless(no_sink(measured, arm))


measure, figure, claims = links.measure, links.figure, links.claims
