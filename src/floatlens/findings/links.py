"""Links: whether the behaviour of anchors predicts the answers, question by question.

The paper reports both floating and the use of knowledge (arXiv 2601.07894); whether they are related within a model is
measured as a rank correlation over questions, from the traces of short questions and the answers to the same questions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.anchors import baseline, find_anchors
from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import answers_of
from floatlens.findings import knowledge, stress, style
from floatlens.findings.by_model import by_model
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.outcome import Outcome, inverted, missing, names, rows_of
from floatlens.findings.received import profile
from floatlens.findings.samples import is_measured, mean_over, models_of, per_sample, require
from floatlens.findings.spelling import number
from floatlens.paper import definitions
from floatlens.stats import interval_of_rank_correlation, rank_correlation_p, spearman
from floatlens.trace.trace import Trace

VIEWS = ("scatter",)
PAIRS = {"gain": ("floating", "gain from passages"), "middle": ("sink", "loss in the middle")}


def measure(samples: tuple[Any, Any], *, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure, per model and question, numbers of the trace and scores of the answers; `samples` is (traces, answers).

    | variable | dims | description |
    |---|---|---|
    | floating | sample | floating of all rows, mean over layers |
    | sink | sample | attention on position 0 beyond uniform attention, in percent, mean over layers |
    | gain | sample | score with passages minus score without; NaN if the question was not asked both ways |
    | middle | sample | score with gold first or last minus between; NaN without the stress position |
    """
    if not isinstance(samples, tuple) or len(samples) != 2:
        raise FloatLensError("links needs traces and answers together: measure((traces, answers))")
    traces, answers = samples
    found = per_sample(traces, lambda trace: _measure_one(trace, rule), "links", rule=rule)
    table = answers_of(answers)
    keys = [
        (str(m), question_of(str(i))) for m, i in zip(found["model"].values, found["sample_id"].values, strict=True)
    ]
    gain, middle = _gain(table), _middle(table)
    return found.assign(
        gain=("sample", np.array([gain.get(key, np.nan) for key in keys])),
        middle=("sample", np.array([middle.get(key, np.nan) for key in keys])),
    )


def _measure_one(trace: Trace, rule: str) -> xr.Dataset:
    require(trace, means=["received"], finding="links")
    a = profile(trace).values
    p_SLT = definitions.anchor_mass(np.nan_to_num(a), find_anchors(a, rule, trace.attention))
    floating = np.array([definitions.floating(p_SLT[:, n]) for n in range(a.shape[1])])
    sink = 100 * (a - baseline(a, trace.attention))[..., 0].mean(axis=0)
    return xr.Dataset({"floating": float(mean_over(floating, 0)), "sink": float(mean_over(sink, 0))})


def question_of(sample_id: str) -> str:
    """The question of a study's sample id, in the form that findings of answers use: data set and number.

    >>> question_of("world:fresh, short, fresh-test-3")
    'world:fresh: fresh-test-3'
    """
    parts = sample_id.rsplit(", ", 2)
    return f"{parts[0]}: {parts[-1]}" if len(parts) == 3 else sample_id


def _gain(answers: pd.DataFrame) -> dict[tuple[str, str], float]:
    if not set(answers["condition"]) & set(knowledge.CONDITIONS):
        return {}
    return _by_question(knowledge.measure(answers), "gain")


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
    keys = zip(measured["model"].values, measured["sample_id"].values, measured[name].values, strict=True)
    return {(str(model), str(sample)): float(value) for model, sample, value in keys}


def _correlate(measured: xr.Dataset, x: str, y: str, kind: str, model: str | None) -> Outcome:
    rows = rows_of(measured, kind, model)
    if not len(rows):
        return missing(kind)
    models = names(measured, rows)
    left, right = measured[x].values[rows], measured[y].values[rows]
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    value, interval = interval_of_rank_correlation(left, right)
    details: dict[str, Any] = {"questions": len(left)}
    if not len(left):
        reason = "no traced question was also answered in the way that the claim needs"
    elif not np.isfinite(value):
        reason = f"{'the ' + PAIRS['gain'][1] if y == 'gain' else PAIRS['middle'][1]} is the same for all questions"
    else:
        details["p of a permutation"] = rank_correlation_p(left, right)
        reason = f"p = {details['p of a permutation']:.3f} by permutation"
    test = inverted(interval_of_rank_correlation, left, right)
    return Outcome(value, interval, len(left), models, details, reason, test=test)


@register_claim("links.gain")
def floating_predicts_gain(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return _correlate(measured, "floating", "gain", "mdm", mdm)


@register_claim("links.sink")
def sink_predicts_loss(measured: xr.Dataset, *, arm: str | None = None) -> Outcome:
    return _correlate(measured, "sink", "middle", "arm", arm)


def figure(measured: xr.Dataset, *, view: str = "scatter", backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw one point per question and model: floating against gain, sink against loss in the middle."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    if not is_measured(measured, "links"):
        raise FloatLensError("the figure of links needs the result of links.measure")
    data = _points(measured)
    if backend == "none":
        return data
    models = models_of(measured)
    colours, markers = style.colour_of(models), style.marker_of(models)
    pairs = [pair for pair in PAIRS if (data["pair"] == pair).any()]
    with style.sheet():
        drawn = style.new_figure(2.6, width=3.4 * max(1, len(pairs)))
        grid = drawn.subplots(1, max(1, len(pairs)), squeeze=False)[0]
        for axes, pair in zip(grid, pairs, strict=False):
            for model in models:
                part = data[(data["pair"] == pair) & (data["model"] == model)]
                look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                axes.plot(part["x"], part["y"], ls="none", ms=3.5, alpha=0.6, **look)
            axes.set(xlabel={"gain": "floating", "middle": "sink (% beyond uniform)"}[pair], ylabel=PAIRS[pair][1])
        if pairs:
            drawn.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
        style.caption(drawn, "One point per question.")
    return drawn


def _points(measured: xr.Dataset) -> pd.DataFrame:
    parts = []
    for pair, (x, _) in PAIRS.items():
        frame = pd.DataFrame(
            {
                "pair": pair,
                "model": measured["model"].values.astype(str),
                "sample": measured["sample_id"].values.astype(str),
                "x": measured[x].values,
                "y": measured[pair].values,
            }
        )
        parts.append(frame.dropna(subset=["x", "y"]))
    return pd.concat(parts, ignore_index=True)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "floating and gain": _spearman(part, "floating", "gain"),
            "sink and loss in the middle": _spearman(part, "sink", "middle"),
            "questions": int(np.isfinite(part["gain"].values).sum()),
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Rank correlations over questions", pd.DataFrame(rows), number)]


def _spearman(part: xr.Dataset, x: str, y: str) -> float:
    return spearman(part[x].values, part[y].values)


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        value = _spearman(part, "floating", "gain")
        if value == value:
            found.append(
                f"In {model} ({kind}) the rank correlation of a question's floating with its gain from passages is "
                f"{number(value, 2)}."
            )
    return found


def _applies(answers: pd.DataFrame) -> bool:
    return set(knowledge.CONDITIONS) <= set(answers["condition"])


REPORT = ReportText(
    title="Links",
    question="Do the anchors predict the answers?",
    views={
        "scatter": (
            "One point per question",
            "Left: floating of the anchors in a question against the gain of its answer from passages. Right: "
            "strength of the sink against the loss when the gold passage is in the middle. The score of a single "
            "answer is 0 or 1, so points lie on a few lines.",
        )
    },
    tables=tables,
    sentences=sentences,
)
links = register_finding(
    Finding(
        "links",
        paper="between its sections",
        measure=measure,
        figure=figure,
        views=VIEWS,
        reads="both",
        report=REPORT,
        applies=_applies,
    )
)
claims = links.claims
