"""Confidence intervals and statistical tests.

`interval_of_mean`, `interval_of_difference` (paired) and `interval_of_contrast` are the intervals of claims, chosen by
simulation so that a 95 % interval covers the truth 95 ± 1.5 % of the time from 12 samples on (the table is printed by
`python -m benchmarks.coverage`). `judge` turns an interval into a verdict, `p_value` inverts an interval, `holm`
corrects for several claims. Scores and curves in tables and figures have seeded bootstrap percentile intervals: the
same samples give the same numbers, but with few samples they cover less than 95 % (80 to 84 % with 5 samples, 87 to 90
% with 12).

NaN marks a sample without a value; such samples are always ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from scipy import stats

from floatlens.errors import FloatLensError

Array: TypeAlias = np.ndarray[Any, Any]
Values: TypeAlias = Sequence[float] | Array
Interval: TypeAlias = tuple[float, float]

LEVEL = 0.95
SMALLEST_N = 12  # all intervals keep their coverage from here on (with 11, paired 0/1 values: 88.9 % at worst)
HOLDS, FAILS, INCONCLUSIVE = "holds", "fails", "inconclusive"
DEPENDS, NOT_TESTABLE = "depends on the rule", "not testable here"
VERDICTS = (HOLDS, FAILS, INCONCLUSIVE, DEPENDS, NOT_TESTABLE)

RESAMPLES, CURVE_RESAMPLES = 4999, 1999
NAN = float("nan")
NO_INTERVAL: Interval = (NAN, NAN)


def interval_of_mean(values: Values, *, binary: bool = False, level: float = LEVEL) -> tuple[float, Interval]:
    """Mean of the values and its confidence interval.

    Real values: on each side, the wider end of Student's t and of Hall's t corrected for skewness. Values that can only
    be 0 or 1 (`binary=True`; the caller decides, because real numbers may happen to be 0 for all samples): Agresti and
    Coull.

    >>> value, (low, high) = interval_of_mean([0.1, 0.4, 0.2, 0.3, 0.2, 0.3, 0.2, 0.1, 0.4, 0.3, 0.2, 0.3])
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.25, 0.186, 0.314)
    >>> interval_of_mean([0.0] * 12)
    (0.0, (0.0, 0.0))
    >>> value, (low, high) = interval_of_mean([0.0] * 12, binary=True)
    >>> value, low, round(high, 3)
    (0.0, 0.0, 0.282)
    """
    finite = _finite(values)
    if binary:
        _check_binary(finite, "interval_of_mean")
    if len(finite) < (1 if binary else 2):
        return float(finite[0]) if len(finite) else NAN, NO_INTERVAL
    low, high = agresti_coull(finite.sum(), len(finite), level) if binary else student_hall(finite, level)
    return float(finite.mean()), (float(low), float(high))


def interval_of_difference(
    a: Values, b: Values, *, binary: bool = False, level: float = LEVEL
) -> tuple[float, Interval]:
    """Mean of a − b over pairs and its interval; entry i of both is the same sample.

    Real values: as for a mean, of the differences. Values that can only be 0 or 1 (`binary=True`): Bonett and Price.

    >>> won, lost = [1] * 9 + [0] * 3, [0] * 12
    >>> value, (low, high) = interval_of_difference(won, lost, binary=True)
    >>> value, round(low, 3), round(high, 3)
    (0.75, 0.323, 0.963)
    """
    left, right = np.asarray(a, float), np.asarray(b, float)
    if left.shape != right.shape:
        raise FloatLensError(
            f"a paired difference needs the same number of values on both sides, not {left.size} and {right.size}; "
            "pair them by id first"
        )
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    if not binary:
        return interval_of_mean(left - right, level=level)
    _check_binary(np.concatenate([left, right]), "interval_of_difference")
    if not len(left):
        return NAN, NO_INTERVAL
    low, high = bonett_price((left > right).sum(), (left < right).sum(), len(left), level)
    return float(left.mean() - right.mean()), (float(low), float(high))


def interval_of_contrast(scores_NK: Array, weights_K: Values, *, level: float = LEVEL) -> tuple[float, Interval]:
    """Mean over samples of a weighted sum of 0/1 scores under K conditions, and its interval.

    A contrast such as `gain_MDM − 2·gain_ARM` (weights 1, −1, −2, 2) takes few distinct values. With few samples all of
    them may be equal, and Student's interval has width 0. One pseudo-sample is added on each side, as Bonett and Price do
    for two conditions, at ±sqrt(sum of squared weights / 3): the smallest value with sufficient coverage in simulations.

    >>> value, (low, high) = interval_of_contrast(np.zeros((12, 4)), [1, -1, -2, 2])
    >>> value, round(low, 3), round(high, 3)
    (0.0, -0.361, 0.361)
    """
    weights = np.asarray(weights_K, float)
    scores = np.asarray(scores_NK, float)
    if scores.ndim != 2 or scores.shape[1] != len(weights):
        raise FloatLensError(f"scores of shape {scores.shape} do not have {len(weights)} conditions, one per weight")
    scores = scores[np.isfinite(scores).all(axis=1)]
    _check_binary(scores, "interval_of_contrast")
    if not len(scores):
        return NAN, NO_INTERVAL
    low, high = padded_wald(scores @ weights, weights, level)
    return float((scores @ weights).mean()), (float(low), float(high))


def student_hall(values: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """Ends of the interval of a mean over the last axis: the wider of Student's t and Hall's transformed t.

    Student's t ignores skewness and fails on the side of the long tail. Hall (1992) maps t to a variable without
    skewness by a cubic, which is inverted here; it fails on short-tailed or heavy-tailed symmetric values. The wider end
    of the two on each side has sufficient coverage in all simulated cases.
    """
    n = values.shape[-1]
    mean = values.mean(axis=-1)
    away = values - mean[..., None]
    error = np.sqrt((away**2).sum(axis=-1) / (n - 1) / n)
    variance = (away**2).mean(axis=-1)
    flat = (variance == 0) | (n < 3)
    skewness = np.where(flat, 0.0, (away**3).mean(axis=-1) / np.where(flat, 1.0, variance) ** 1.5)
    bend = skewness * np.sqrt((n - 1) / n) * n / max(n - 2, 1) / np.sqrt(n)
    t = stats.t.ppf((1 + level) / 2, n - 1)
    upper, lower = _undo_hall(t, bend), _undo_hall(-t, bend)
    return mean - error * np.maximum(t, upper), mean - error * np.minimum(-t, lower)


def _undo_hall(y: float, bend: Array) -> Array:
    """Inverse of Hall's transformation g(t) = t + bend·(t²/3 + 1/6) + bend²·t³/27, where bend = skewness / sqrt(n)."""
    straight = np.abs(bend) < 1e-6
    bend = np.where(straight, 1.0, bend)
    return np.where(straight, y, 3 / bend * (np.cbrt(1 + bend * (y - bend / 6)) - 1))


def agresti_coull(ones: Any, n: Any, level: float = LEVEL) -> tuple[Array, Array]:
    """Ends of the interval of a proportion: Wald's, after adding z²/2 ones and z²/2 zeros."""
    z = stats.norm.ppf((1 + level) / 2)
    share = (ones + z * z / 2) / (n + z * z)
    half = z * np.sqrt(share * (1 - share) / (n + z * z))
    return np.maximum(share - half, 0.0), np.minimum(share + half, 1.0)


def bonett_price(gained: Any, lost: Any, n: Any, level: float = LEVEL) -> tuple[Array, Array]:
    """Ends of the interval of a paired difference of proportions: Wald's, after adding one gain and one loss."""
    z = stats.norm.ppf((1 + level) / 2)
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = z * np.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return np.maximum(up - down - half, -1.0), np.minimum(up - down + half, 1.0)


def padded_wald(values: Array, weights: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """Ends of the interval of the mean (last axis) of contrasts of 0/1 scores; see `interval_of_contrast`."""
    n = values.shape[-1] + 2
    size = (weights**2).sum() / 3
    mean = values.sum(axis=-1) / n
    variance = ((values**2).sum(axis=-1) + 2 * size) / n - mean**2
    half = stats.norm.ppf((1 + level) / 2) * np.sqrt(variance / n)
    least, most = weights[weights < 0].sum(), weights[weights > 0].sum()
    return np.maximum(mean - half, least), np.minimum(mean + half, most)


def bonett_wright(correlation: Any, n: Any, level: float = LEVEL) -> tuple[Array, Array]:
    """Ends of the interval of Spearman's rank correlation."""
    near = np.clip(correlation, -1 + 1e-12, 1 - 1e-12)
    half = stats.norm.ppf((1 + level) / 2) * np.sqrt((1 + near**2 / 2) / (n - 3))
    return np.tanh(np.arctanh(near) - half), np.tanh(np.arctanh(near) + half)


def judge(value: float, interval: Interval, n: int, effect: float) -> str:
    """Verdict on a claim that a statistic exceeds the smallest effect that matters.

    `holds` if the whole interval lies above that effect, `fails` if it lies below, otherwise `inconclusive`; `not testable
    here` with fewer than 12 samples, or without an interval.

    >>> judge(0.3, (0.2, 0.4), n=24, effect=0.1), judge(0.0, (-0.1, 0.05), n=24, effect=0.1)
    ('holds', 'fails')
    >>> judge(0.1, (0.0, 0.2), n=24, effect=0.1), judge(0.3, (0.2, 0.4), n=11, effect=0.1)
    ('inconclusive', 'not testable here')
    """
    low, high = interval
    if n < SMALLEST_N or not np.isfinite([value, low, high, effect]).all():
        return NOT_TESTABLE
    return HOLDS if low > effect else FAILS if high < effect else INCONCLUSIVE


def p_value(interval: Callable[..., tuple[float, Interval]], *data: Any, null: float = 0.0, **settings: Any) -> float:
    """Two-sided p-value of `null` by inverting one of the intervals above: 1 minus the level at which it reaches `null`.

    It is below 0.05 exactly when the 95 % interval excludes `null`. NaN if there is no interval; never below 1e-12.

    >>> values = [0.1, 0.4, 0.2, 0.3, 0.2, 0.3, 0.2, 0.1, 0.4, 0.3, 0.2, 0.3]
    >>> round(p_value(interval_of_mean, values, null=0.2), 3)
    0.111
    >>> p_value(interval_of_difference, [1] * 9 + [0] * 3, [0] * 12, binary=True) < 0.05
    True
    """
    smallest = 1e-12

    def holds(p: float) -> bool:
        low, high = interval(*data, level=1 - p, **settings)[1]
        return bool(low <= null <= high)

    if not np.isfinite(interval(*data, level=LEVEL, **settings)[1]).all():
        return NAN
    if holds(1 - smallest):
        return 1.0
    if not holds(smallest):
        return smallest
    inside, outside = np.log(smallest), np.log(1 - smallest)  # bisect the logarithm: small values matter
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(float(np.exp(middle))) else (inside, middle)
    return float(np.exp(inside))


def holm(p_values: Values) -> Array:
    """P-values adjusted for multiple testing by Holm's step-down method; NaN stays NaN and is not counted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p_values, float)
    adjusted = np.full(given.shape, np.nan)
    there = np.flatnonzero(np.isfinite(given))
    order = there[np.argsort(given[there], kind="stable")]
    steps = given[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return adjusted


def spearman(x: Values, y: Values) -> float:
    """Spearman's rank correlation; ties share their mean rank. NaN with fewer than 3 pairs or if a side is constant."""
    left, right = np.asarray(x, float), np.asarray(y, float)
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    if len(left) < 3 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return NAN
    return round(float(np.corrcoef(stats.rankdata(left), stats.rankdata(right))[0, 1]), 15)


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` questions with its interval; for a paired difference, also the p-value of no difference."""

    value: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0
    p: float = NAN


def percentile_mean(values: Values, seed: int = 0) -> Estimate:
    """Mean with its bootstrap interval (percentile)."""
    scores = _finite(values)
    if not len(scores):
        return Estimate()
    return Estimate(float(scores.mean()), *percentile_interval(_resample_mean(scores, seed)), len(scores))


def percentile_difference(left: Mapping[str, float], right: Mapping[str, float], seed: int = 0) -> Estimate:
    """Mean of left − right over the questions that both have, its bootstrap interval (percentile) and its p-value."""
    differences = _finite([left[key] - right[key] for key in left if key in right])
    p = sign_flip_p(differences, seed) if len(differences) else NAN
    return replace(percentile_mean(differences, seed), p=p)


def sign_flip_p(differences: Values, seed: int = 0) -> float:
    """Two-sided p-value of a mean difference of zero: each sign is flipped at random (all flips if there are few)."""
    apart = np.asarray(differences, float)
    apart = apart[apart != 0]  # a question with no difference has no sign to flip
    if len(apart) < 2:
        return 1.0
    test = stats.permutation_test(
        (apart,), np.mean, permutation_type="samples", vectorized=True, n_resamples=9999, batch=500, rng=seed
    )
    return float(test.pvalue)


def macro_mean(datasets: Sequence[Values], seed: int = 0) -> Estimate:
    """Mean of the means of data sets, equally weighted; questions are resampled within data sets."""
    scored = [scores for scores in map(_finite, datasets) if len(scores)]
    if not scored:
        return Estimate()
    interval = percentile_interval(np.mean([_resample_mean(s, seed + i) for i, s in enumerate(scored)], axis=0))
    return Estimate(float(np.mean([s.mean() for s in scored])), *interval, sum(map(len, scored)))


def resample_curves(scores_NX: Array, seed: int = 0) -> Array:
    """Mean curves (resample, X) of questions drawn with replacement, each kept with all its levels."""
    draw = np.random.default_rng(seed)
    weights = draw.multinomial(len(scores_NX), np.full(len(scores_NX), 1 / len(scores_NX)), size=CURVE_RESAMPLES)
    return np.asarray(weights @ scores_NX / len(scores_NX))


def percentile_interval(draws: Array) -> Interval:
    """Percentile interval of bootstrap draws."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def slope(x: Values, y: Array) -> Array:
    """Least-squares slope of each row of `y` over `x`."""
    centred = np.asarray(x, float) - np.mean(x)
    return np.asarray((y - y.mean(axis=-1, keepdims=True)) @ centred / (centred @ centred))


def finite_or_none(value: float) -> float | None:
    """The number for JSON: None (null) if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None


def _resample_mean(scores: Array, seed: int) -> Array:
    """Means of draws with replacement; by counts of distinct values, since scores are mostly 0 and 1."""
    values, counts = np.unique(scores, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(scores), counts / len(scores), size=RESAMPLES)
    return np.asarray(drawn @ values / len(scores))


def _finite(values: Values) -> Array:
    array = np.asarray(values, float)
    return np.asarray(array[np.isfinite(array)])


def _check_binary(values: Array, name: str) -> None:
    other = values[(values != 0) & (values != 1)]
    if other.size:
        raise FloatLensError(
            f"{name} expects values of 0 or 1, found {other.flat[0]:g}; use the interval for real values"
        )
