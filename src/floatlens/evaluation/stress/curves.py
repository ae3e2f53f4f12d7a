"""The results of a stress test: a curve per model with intervals, and its robustness as single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from floatlens import stats
from floatlens.evaluation.summary import difference, results

Array = NDArray[np.float64]
GROUP = ["stress", "model", "data", "intervention"]


def curves(answers: pd.DataFrame, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model, data set, intervention and level: the mean score of the answered questions."""
    rows, answers = [], with_intervention(answers)
    for key, part in answers.groupby([*GROUP, "level"], sort=False):
        estimate = stats.percentile_mean(part[score].to_numpy(float))
        about = dict(zip([*GROUP, "level"], key, strict=True))
        numbers = {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}
        first = part.iloc[0]
        rows.append({**about, "x": first["x"], "kind": str(first["kind"]), "score": score, **numbers})
    return pd.DataFrame(rows)


def robustness(answers: pd.DataFrame, score: str = "accuracy") -> pd.DataFrame:
    """Return one row per model, data set and intervention.

    `range` is best minus worst level, `slope` the change of the score per unit of the axis, `loss` first minus last
    level. Intervals are bootstrap intervals over questions, each with all its levels. The range of a noisy curve is never
    0, so compare it between models on the same questions, not with 0.
    """
    rows, answers = [], with_intervention(answers)
    for key, part in answers.groupby(GROUP, sort=False):
        scores_NX, x_X, levels = matrix(part, score)
        numbers: dict[str, float] = {"n": len(scores_NX), "levels": len(levels)}
        for name, (value, low, high) in estimates(scores_NX, x_X).items():
            numbers |= {name: value, f"{name}_low": low, f"{name}_high": high}
        first = part.iloc[0]
        rows.append({**dict(zip(GROUP, key, strict=True)), "kind": str(first["kind"]), "score": score, **numbers})
    return pd.DataFrame(rows)


def effects(answers: pd.DataFrame, score: str = "accuracy") -> list[dict[str, Any]]:
    """Return one entry per model, data set and intervention: its effect on the score and on robustness.

    `accuracy` (or the chosen score) is the mean over levels, `loss` first minus last level on the axis; each under the
    intervention minus without it (`change`), and minus its matched control, mean over seeds (`beyond`), paired by question.
    A positive `loss` means that the stress costs more under the intervention.
    """
    found = []
    for (stress, model, data), part in with_intervention(answers).groupby(GROUP[:3], sort=False):
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
    levels = list(dict.fromkeys(part["level"]))
    wide = part.pivot(index="id", columns="level", values=score)[levels].dropna()
    x = pd.to_numeric(part.drop_duplicates("level").set_index("level")["x"].reindex(levels)).dropna()
    found = {score: wide.mean(axis=1)}
    if len(x) > 1:
        found["loss"] = wide[x.idxmin()] - wide[x.idxmax()]
    return found


def with_intervention(answers: pd.DataFrame) -> pd.DataFrame:
    """Return the answers with the columns on interventions; answers of earlier versions have none."""
    missing = {name: "" for name in ("intervention", "of") if name not in answers}
    return answers.assign(**missing) if missing else answers


def matrix(part: pd.DataFrame, score: str) -> tuple[Array, Array, list[str]]:
    """Return scores (question, level) of the questions answered at every level, the axis, and the names of the levels."""
    levels = list(dict.fromkeys(part["level"]))
    wide = part.pivot(index="id", columns="level", values=score)[levels].dropna()
    x = part.drop_duplicates("level").set_index("level")["x"].reindex(levels)
    return wide.to_numpy(float), pd.to_numeric(x).to_numpy(float), levels


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


def estimates(scores_NX: Array, x_X: Array) -> dict[str, tuple[float, float, float]]:
    """Return value and interval of each number."""
    if not len(scores_NX):
        return {"range": (np.nan, np.nan, np.nan)}
    values = numbers_of(scores_NX.mean(axis=0, keepdims=True), x_X)
    drawn = numbers_of(stats.resample_curves(scores_NX), x_X)
    found = {}
    for name, value in values.items():
        low, high = stats.percentile_interval(drawn[name])
        found[name] = (float(value[0]), float(low), float(high))
    return found


def as_results(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the results of the answers with the name of the level and its value on the axis."""
    levels = with_intervention(answers).drop_duplicates(["data", "condition"]).set_index(["data", "condition"])
    found = []
    for entry in results(answers):
        at = levels.loc[(entry["data"], entry["condition"])]
        x = None if pd.isna(at["x"]) else float(at["x"])
        about = {"stress": at["stress"], "level": at["level"], "x": x, "intervention": at["intervention"]}
        found.append({**entry, **about})
    return found
