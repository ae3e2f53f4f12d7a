"""How sure are the scores? Bootstrap intervals, paired permutation tests and macro averages, over questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
LEVEL = 0.95
RESAMPLES = 4999
NAN = float("nan")


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` questions with its interval."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Difference(Estimate):
    """A mean paired difference, with the p-value of a permutation test of no difference."""

    p: float


def mean(values: Sequence[float] | Array, seed: int = 0) -> Estimate:
    """Mean with its 95 % bootstrap interval (percentile); NaN values are questions without a score and do not count.

    >>> mean([1, 0, 1, 1])
    Estimate(value=0.75, low=0.25, high=1.0, n=4)
    """
    scores = _scored(values)
    if not len(scores):
        return Estimate(NAN, NAN, NAN, 0)
    low, high = _percentiles(_resampled_means(scores, seed))
    return Estimate(float(scores.mean()), low, high, len(scores))


def paired(left: Mapping[str, float], right: Mapping[str, float], seed: int = 0) -> Difference:
    """Mean of left − right over the questions that both have, its interval and its p-value.

    The test flips the sign of each question's difference at random (all flips if there are few): under no difference
    between the two, either sign is as likely.

    >>> paired({"a": 1, "b": 1, "c": 1}, {"a": 0, "b": 0, "c": 0}).p
    0.25
    """
    both = [key for key in left if key in right]
    differences = _scored([left[key] - right[key] for key in both])
    if not len(differences):
        return Difference(NAN, NAN, NAN, 0, NAN)
    low, high = _percentiles(_resampled_means(differences, seed))
    value = float(differences.mean())
    return Difference(value, low, high, len(differences), permutation_p(differences, seed))


def permutation_p(differences: Sequence[float] | Array, seed: int = 0) -> float:
    """Two-sided p-value of a mean difference of zero, by flipping signs.

    >>> permutation_p([0.0, 0.0])
    1.0
    """
    apart = np.asarray(differences, float)
    apart = apart[apart != 0]  # a question with no difference has no sign to flip
    if len(apart) < 2:
        return 1.0
    found = stats.permutation_test(
        (apart,), _mean, permutation_type="samples", vectorized=True, n_resamples=9999, batch=500, rng=seed
    )
    return float(found.pvalue)


def macro(datasets: Sequence[Sequence[float] | Array], seed: int = 0) -> Estimate:
    """Mean over data sets of their means: each counts the same, however large. Questions are drawn within data sets.

    >>> macro([[1, 1, 1, 1], [0]]).value
    0.5
    """
    scored = [scores for scores in map(_scored, datasets) if len(scores)]
    if not scored:
        return Estimate(NAN, NAN, NAN, 0)
    means = np.mean([_resampled_means(scores, seed + i) for i, scores in enumerate(scored)], axis=0)
    low, high = _percentiles(means)
    return Estimate(float(np.mean([s.mean() for s in scored])), low, high, sum(map(len, scored)))


def slope(x: Sequence[float] | Array, y: Array) -> Array:
    """Least-squares slope of each row of `y` over `x`, which is what a score loses or gains per unit of x.

    >>> slope([0, 1, 2], np.array([[1.0, 0.5, 0.0]]))
    array([-0.5])
    """
    centred = np.asarray(x, float) - np.mean(x)
    return (y - y.mean(axis=-1, keepdims=True)) @ centred / (centred @ centred)


def _mean(x: Array, axis: int = -1) -> Array:
    return np.asarray(x.mean(axis=axis))


def _scored(values: Sequence[float] | Array) -> Array:
    scores = np.asarray(values, float)
    return scores[np.isfinite(scores)]


def _resampled_means(scores: Array, seed: int) -> Array:
    """Means of RESAMPLES draws with replacement; by counts of distinct values, since scores are mostly 0 and 1."""
    values, counts = np.unique(scores, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(scores), counts / len(scores), size=RESAMPLES)
    return np.asarray(drawn @ values / len(scores))


def _percentiles(means: Array) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
