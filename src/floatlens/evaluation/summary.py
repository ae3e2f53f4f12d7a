"""The results of an evaluation: scores with intervals, paired comparisons, macro averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from floatlens import stats
from floatlens.evaluation.metrics import SCORES
from floatlens.evaluation.sources import CLOSED, OPEN

KEY = ["model", "data", "condition"]


def results(answers: pd.DataFrame, labels: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return one entry per model, data set and condition; scores between 0 and 1 over the answered questions.

    `labels` are columns with one value per condition, which an entry also has.
    """
    return [_result(key, part, labels) for key, part in answers.groupby(KEY, sort=False)]


def averages(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the macro average over data sets per model and condition, if there is more than one data set."""
    found = []
    for (model, condition), part in answers.groupby(["model", "condition"], sort=False):
        groups = [group for _, group in part.groupby("data", sort=False)]
        if len(groups) > 1:
            entry: dict[str, Any] = {"model": model, "condition": condition, "data": "average", "datasets": len(groups)}
            estimates = {name: stats.macro_mean([g[name].to_numpy(float) for g in groups]) for name in SCORES}
            found.append({**entry, **values_and_intervals(estimates)})
    return found


def comparisons(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return paired differences per question: open book − closed book for each model, and between models."""
    found = []
    for data, part in answers.groupby("data", sort=False):
        groups: dict[Any, pd.DataFrame] = {
            key: group.set_index("id") for key, group in part.groupby(["model", "condition"], sort=False)
        }
        for left, right in _pairs(list(groups)):
            for score in SCORES:
                between = difference(groups[left][score], groups[right][score])
                sides = [{"model": model, "condition": condition} for model, condition in (left, right)]
                entry = {"data": data, "score": score, "left": sides[0], "right": sides[1]}
                found.append({**entry, "difference": between.pop("value"), **between})
    return found


def difference(left: pd.Series[float], right: pd.Series[float]) -> dict[str, Any]:
    """Return the mean paired difference with its interval, p-value and number of pairs."""
    one, other = ({str(k): float(v) for k, v in series.items()} for series in (left, right))
    made = stats.percentile_difference(one, other)
    value, low, high, p = map(stats.finite_or_none, (made.value, made.low, made.high, made.p))
    return {"value": value, "interval": [low, high], "p": p, "n": made.n}


def _pairs(keys: list[tuple[str, str]]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    gains = [((m, OPEN), (m, CLOSED)) for m, c in keys if c == OPEN and (m, CLOSED) in keys]
    between = [(a, b) for i, a in enumerate(keys) for b in keys[i + 1 :] if a[1] == b[1]]
    return gains + between


def _result(key: Any, part: pd.DataFrame, labels: Sequence[str]) -> dict[str, Any]:
    model, data, condition = key
    answered = part[part["error"].isna()]
    shown = answered["passages"]
    constant = len(shown) and shown.nunique() == 1
    entry: dict[str, Any] = {
        "model": model,
        "data": data,
        "condition": condition,
        "passages": int(shown.iloc[0]) if constant else stats.finite_or_none(float(shown.mean())),
        "n": len(answered),
        "errors": int(part["error"].notna().sum()),
        "truncated": int((answered["dropped"] > 0).sum()),
        **values_and_intervals({name: stats.percentile_mean(answered[name].to_numpy(float)) for name in SCORES}),
        "confidence": stats.finite_or_none(float(answered["confidence"].mean())),
        "steps": stats.finite_or_none(float(answered["steps"].astype(float).mean())),
    }
    for name in ("recall", "answer_recall"):
        if answered[name].notna().any():
            entry[name] = stats.finite_or_none(float(answered[name].mean()))
    return entry | {name: None if pd.isna(value := part[name].iloc[0]) else value for name in labels}


def values_and_intervals(estimates: dict[str, stats.Estimate]) -> dict[str, Any]:
    """Return each value by its name, and the intervals of all of them, with None instead of NaN."""
    values = {name: stats.finite_or_none(each.value) for name, each in estimates.items()}
    intervals = {name: [*map(stats.finite_or_none, (each.low, each.high))] for name, each in estimates.items()}
    return {**values, "intervals": intervals}
