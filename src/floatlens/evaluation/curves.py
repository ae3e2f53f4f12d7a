"""The results of a stress test: a curve per model with intervals, and its robustness as single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from floatlens import stats
from floatlens.evaluation.summary import difference

Array = NDArray[np.float64]
GROUP = ["stress", "model", "data", "intervention"]


def curves(answers: pd.DataFrame, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model, data set, intervention and level: the mean score of the answered questions."""
    rows = []
    for key, part in answers.groupby([*GROUP, "level"], sort=False):
        estimate = stats.percentile_mean(part[score].to_numpy(float))
        row = dict(zip([*GROUP, "level"], key, strict=True)) | {
            "x": part["x"].iloc[0],
            "kind": str(part["kind"].iloc[0]),
        }
        row |= {"score": score, "mean": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}
        rows.append(row)
    return pd.DataFrame(rows)


def robustness(answers: pd.DataFrame, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model, data set and intervention.

    `range` is best minus worst level, `slope` the change of the score per unit of the axis, `loss` first minus last
    level. Intervals are bootstrap intervals over questions, each with all its levels. The range of a noisy curve is never
    0, so compare it between models on the same questions, not with 0.
    """
    rows = []
    for key, part in answers.groupby(GROUP, sort=False):
        scores, x_X = by_level(part, score)
        numbers: dict[str, float] = {"n": len(scores), "levels": len(x_X)}
        for name, (value, low, high) in estimates(scores.to_numpy(float), np.asarray(x_X, np.float64)).items():
            numbers |= {name: value, f"{name}_low": low, f"{name}_high": high}
        about = {**dict(zip(GROUP, key, strict=True)), "kind": str(part["kind"].iloc[0]), "score": score}
        rows.append({**about, **numbers})
    return pd.DataFrame(rows)


def effects(answers: pd.DataFrame, score: str = "accuracy") -> list[dict[str, Any]]:
    """Return one entry per model, data set and intervention: its effect on the score and on robustness.

    `accuracy` (or the chosen score) is the mean over levels, `loss` first minus last level on the axis; each under the
    intervention minus without it (`change`), and minus its matched control, mean over seeds (`beyond`), paired by question.
    A positive `loss` means that the stress costs more under the intervention.
    """
    found = []
    for (stress, model, data), part in answers.groupby(GROUP[:3], sort=False):
        plain = _numbers_by_question(part[part["intervention"] == ""], score)
        for name in dict.fromkeys(part["of"][part["of"] != ""]):
            mine = part[part["of"] == name]
            under = _numbers_by_question(mine[mine["intervention"] == name], score)
            controls = mine[mine["intervention"] != name]
            drawn = [_numbers_by_question(one, score) for _, one in controls.groupby("intervention", sort=False)]
            entry: dict[str, Any] = {"stress": stress, "model": model, "data": data, "intervention": name}
            entry |= {"controls": len(drawn), "change": {}, "beyond": {}}
            for number in under:
                entry["change"][number] = difference(under[number], plain[number])
                if drawn:
                    control = pd.concat([one[number] for one in drawn], axis=1).mean(axis=1, skipna=False)
                    entry["beyond"][number] = difference(under[number], control)
            found.append(entry)
    return found


def _numbers_by_question(part: pd.DataFrame, score: str) -> dict[str, pd.Series[float]]:
    """Return each question's mean score over the levels, and its score at the first level of the axis minus the last."""
    scores, x_X = by_level(part, score)
    found, x_X = {score: scores.mean(axis=1)}, x_X.dropna()
    if len(x_X) > 1:
        found["loss"] = scores[x_X.idxmin()] - scores[x_X.idxmax()]
    return found


def by_level(part: pd.DataFrame, score: str) -> tuple[pd.DataFrame, pd.Series[float]]:
    """Return the scores of the questions answered at every level, one column per level, and the axis by level."""
    axis = part.drop_duplicates("level").set_index("level")["x"]
    return part.pivot(index="id", columns="level", values=score)[axis.index].dropna(), pd.to_numeric(axis)


def estimates(scores_NX: Array, x_X: Array) -> dict[str, tuple[float, float, float]]:
    """Return value and interval of range, slope and loss."""
    if not len(scores_NX):
        return {"range": (np.nan, np.nan, np.nan)}
    values = numbers_of(scores_NX.mean(axis=0, keepdims=True), x_X)
    drawn = numbers_of(stats.resample_curves(scores_NX), x_X)
    return {name: (float(value[0]), *stats.percentile_interval(drawn[name])) for name, value in values.items()}


def numbers_of(means_RX: Array, x_X: Array) -> dict[str, Array]:
    """Return range, slope and loss of curves, one per row.

    >>> {k: v.tolist() for k, v in numbers_of(np.array([[1.0, 0.5, 0.5]]), np.array([0.0, 1.0, 2.0])).items()}
    {'range': [0.5], 'slope': [-0.25], 'loss': [0.5]}
    """
    found = {"range": means_RX.max(axis=-1) - means_RX.min(axis=-1)}
    placed = np.isfinite(x_X)
    if placed.sum() > 1:
        found["slope"] = stats.slope(x_X[placed], means_RX[:, placed])
        found["loss"] = means_RX[:, placed][:, 0] - means_RX[:, placed][:, -1]
    return found
