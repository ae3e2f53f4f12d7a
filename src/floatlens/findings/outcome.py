"""The outcome of a claim's statistic: its value and interval over samples, for one model or between two.

Samples are paired by their id: a difference between models is taken question by question. Several models on one side
are averaged per question first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.findings.samples import Array
from floatlens.stats import (
    INCONCLUSIVE,
    NAN,
    NO_INTERVAL,
    NOT_SUPPORTED,
    SUPPORTED,
    TOO_FEW,
    Interval,
    interval_of_contrast,
    interval_of_difference,
    interval_of_mean,
    judge,
    p_value,
)

KINDS = {"mdm": "MDM", "arm": "ARM"}


@dataclass(frozen=True)
class Outcome:
    """A statistic with its 95 % interval over `n` samples of `models`.

    `details` holds further numbers. `blocked` is the reason why the samples cannot decide, regardless of the interval;
    `reason` adds a sentence to the verdict. `test` returns the p-value of a null by inverting the interval. `below` is a
    second condition: the statistic must also lie below this bound.
    """

    value: float
    interval: Interval
    n: int
    models: tuple[str, ...]
    details: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    blocked: str = ""
    test: Callable[[float], float] | None = field(default=None, compare=False)
    below: float | None = None

    def judge(self, effect: float) -> str:
        """Verdict on all conditions: supported if all are, not supported if one is not, otherwise inconclusive."""
        found = [judge(self.value, self.interval, self.n, effect)]
        if self.below is not None:
            low, high = self.interval
            found.append(judge(-self.value, (-high, -low), self.n, -self.below))
        for verdict in (TOO_FEW, NOT_SUPPORTED, INCONCLUSIVE):
            if verdict in found:
                return verdict
        return SUPPORTED

    def p_value(self, effect: float) -> float:
        """P-value of the smallest effect that matters (the largest one over all conditions). NaN without an interval."""
        if self.test is None:
            return NAN
        return max(self.test(bound) for bound in (effect, *(() if self.below is None else (self.below,))))


def inverted(interval: Callable[..., tuple[float, Interval]], *data: Any) -> Callable[[float], float]:
    """A function that returns the p-value of a null by inverting this interval of this data."""
    return lambda null: p_value(interval, *data, null=null)


def mean_of(
    measured: xr.Dataset,
    values: Array,
    *,
    kind: str | None = None,
    model: str | None = None,
    beside: Mapping[str, Array] | None = None,
    what: str = "samples",
    **more: Any,
) -> Outcome:
    """Mean over the samples of one model, or of all models of a kind ("mdm", "arm").

    Parameters
    ----------
    values
        One number per sample of `measured`; NaN for a sample without a value.
    beside
        Further numbers per sample; their means and intervals go into the details.
    """
    rows = rows_of(measured, kind, model)
    models = names(measured, rows)
    if not len(rows):
        return missing(kind or "mdm", models)
    found = list(by_id(measured, values, rows).values())
    value, interval = interval_of_mean(found)
    details = {name: describe(by_id(measured, numbers, rows)) for name, numbers in (beside or {}).items()}
    reason = "" if found else f"none of the {len(rows)} {what} has a value"
    more = {"reason": reason, "test": inverted(interval_of_mean, found), **more}
    return Outcome(value, interval, len(found), models, details, **more)


def between(measured: xr.Dataset, values: Array, low: float, high: float, **about: Any) -> Outcome:
    """Mean that should lie above `low`, the claim's effect, and below `high`: two conditions. For the rest see `mean_of`."""
    assert low < high
    return mean_of(measured, values, below=high, **about)


def difference(
    measured: xr.Dataset,
    values: Array,
    *,
    mdm: str | None,
    arm: str | None,
    sign: int = 1,
    unit: str = "",
    digits: int = 2,
    beside: Mapping[str, Array] | None = None,
) -> Outcome:
    """Masked diffusion model minus autoregressive model (reversed with `sign=-1`), question by question.

    Differences of the numbers in `beside` go into the details.
    """
    rows = {kind: rows_of(measured, kind, model) for kind, model in (("mdm", mdm), ("arm", arm))}
    models = names(measured, rows["mdm"]) + names(measured, rows["arm"])
    for kind, found in rows.items():
        if not len(found):
            return missing(kind, models)
    left, right = paired(measured, values, rows["mdm"], rows["arm"])
    value, interval = interval_of_mean(sign * (left - right))
    details: dict[str, Any] = {KINDS["mdm"]: _mean(left), KINDS["arm"]: _mean(right)}
    for name, numbers in (beside or {}).items():
        a, b = paired(measured, numbers, rows["mdm"], rows["arm"])
        mean, (low, high) = interval_of_mean(sign * (a - b))
        details[name] = [mean, low, high]
    reason = (
        f"{details['MDM']:.{digits}f}{unit} in the MDM, {details['ARM']:.{digits}f}{unit} in the ARM"
        if len(left)
        else "the two models have no sample in common that has a value in both"
    )
    test = inverted(interval_of_mean, sign * (left - right))
    return Outcome(value, interval, len(left), models, details, reason, test=test)


def contrast(
    measured: xr.Dataset, scores_NK: Array, weights_K: Array, *, mdm: str | None, arm: str | None, binary: bool
) -> Outcome:
    """Mean over questions of a weighted sum of scores under K conditions, the MDM's weights minus those of the ARM.

    `weights_K` holds the MDM's weights, then the ARM's. With `binary` the scores can only be 0 or 1.
    """
    rows = {kind: rows_of(measured, kind, model) for kind, model in (("mdm", mdm), ("arm", arm))}
    models = names(measured, rows["mdm"]) + names(measured, rows["arm"])
    for kind, found in rows.items():
        if not len(found):
            return missing(kind, models)
    columns = [
        paired(measured, scores_NK[:, k], rows["mdm"], rows["arm"], keep=True) for k in range(scores_NK.shape[1])
    ]
    joined = np.column_stack([left for left, _ in columns] + [right for _, right in columns])
    joined = joined[np.isfinite(joined).all(axis=1)]
    if not len(joined):
        return Outcome(NAN, NO_INTERVAL, 0, models, reason="the two models have no question answered by both")
    binary = binary and bool(np.isin(joined, (0.0, 1.0)).all())
    method: tuple[Any, ...] = (
        (interval_of_contrast, joined, weights_K) if binary else (interval_of_mean, joined @ weights_K)
    )
    value, interval = method[0](*method[1:])
    half = scores_NK.shape[1]
    details = {"MDM": _mean(joined[:, :half] @ weights_K[:half]), "ARM": _mean(joined[:, half:] @ -weights_K[half:])}
    return Outcome(value, interval, len(joined), models, details, test=inverted(*method))


def change_under(measured: xr.Dataset, before: Array, under: Array, *, kind: str, model: str | None) -> Outcome:
    """Mean over questions of the scores of one model under a first condition minus those under a second."""
    rows = rows_of(measured, kind, model)
    models = names(measured, rows)
    if not len(rows):
        return missing(kind, models)
    left, right = (np.array([*by_id(measured, values, rows, keep=True).values()]) for values in (before, under))
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    binary = bool(np.isin([left, right], (0.0, 1.0)).all())

    def interval(a: Array, b: Array, **level: float) -> tuple[float, Interval]:
        return interval_of_difference(a, b, binary=binary, **level)

    value, ends = interval(left, right)
    details = {"first": _mean(left), "last": _mean(right)}
    reason = "" if len(left) else f"none of the {len(rows)} questions has a score under both conditions"
    return Outcome(value, ends, len(left), models, details, reason, test=inverted(interval, left, right))


def missing(kind: str, models: tuple[str, ...] = (), where: str = "samples") -> Outcome:
    """No value, because no model of that kind is among the samples."""
    return Outcome(NAN, NO_INTERVAL, 0, models, reason=f"there is no {KINDS[kind]} among the {where}")


def rows_of(measured: xr.Dataset, kind: str | None, model: str | None) -> Array:
    """Rows of the samples of a kind of model, and of one model if it is named."""
    rows = np.ones(measured.sizes["sample"], bool)
    if model is not None:
        rows = measured["model"].values == model
        if not rows.any():
            known = ", ".join(dict.fromkeys(map(str, measured["model"].values)))
            raise FloatLensError(f"there are no samples of model {model!r}; there are {known}")
    if kind is not None:
        rows &= measured["model_kind"].values == kind
    return np.flatnonzero(rows)


def names(measured: xr.Dataset, rows: Array) -> tuple[str, ...]:
    """The models of these rows, each once."""
    return tuple(dict.fromkeys(str(m) for m in measured["model"].values[rows]))


def by_id(measured: xr.Dataset, values: Array, rows: Array, keep: bool = False) -> dict[str, float]:
    """One value per sample id: the mean over models; samples without a value are left out unless `keep`.

    Samples without an id are not combined.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(str(measured["sample_id"].values[row]) or f"row {row}", []).append(float(values[row]))
    means = {name: _mean(np.array(several)) for name, several in found.items()}
    return means if keep else {name: value for name, value in means.items() if np.isfinite(value)}


def paired(measured: xr.Dataset, values: Array, left: Array, right: Array, keep: bool = False) -> tuple[Array, Array]:
    """Values of the samples that both sides have, in the same order."""
    a, b = by_id(measured, values, left, keep), by_id(measured, values, right, keep)
    both = [name for name in a if name in b]
    return np.array([a[name] for name in both]), np.array([b[name] for name in both])


def describe(values: Mapping[str, float]) -> list[float]:
    """Mean and interval as a list, for the details of a verdict."""
    mean, (low, high) = interval_of_mean(list(values.values()))
    return [mean, low, high]


def _mean(values: Array) -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else NAN
