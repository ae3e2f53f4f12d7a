"""A claim made testable: a statistic, its bootstrap interval over samples, and one of three verdicts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from floatlens.errors import FloatLensError
from floatlens.files import atomic_write
from floatlens.findings.samples import Array

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"
MIN_SAMPLES = 5  # a bootstrap over fewer says nothing about other samples
LEVEL = 0.95
RESAMPLES = 4999


@dataclass(frozen=True)
class Verdict:
    """What a claim of the paper comes to on the samples at hand.

    `value` is the statistic, `interval` its 95 % bootstrap interval over the `n` samples; `reason` says why the
    verdict is what it is, and `details` holds further numbers that a careful reader wants.
    """

    finding: str
    claim: str
    statistic: str
    value: float
    interval: tuple[float, float]
    verdict: str
    rule: str
    n: int
    models: tuple[str, ...] = ()
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is null."""
        return {
            **{k: getattr(self, k) for k in ("finding", "claim", "statistic")},
            "value": _number(self.value),
            "interval": [_number(x) for x in self.interval],
            **{k: getattr(self, k) for k in ("verdict", "rule", "n", "reason")},
            "models": list(self.models),
            "details": _plain(self.details),
        }


def judge(interval: tuple[float, float], threshold: float = 0.0) -> str:
    """Supported when the whole interval lies above the threshold, not supported when it lies at or below it.

    >>> judge((0.1, 0.3)), judge((-0.3, -0.1)), judge((-0.1, 0.2))
    ('supported', 'not supported', 'inconclusive')
    """
    low, high = interval
    if not (np.isfinite(low) and np.isfinite(high)):
        return INCONCLUSIVE
    return SUPPORTED if low > threshold else NOT_SUPPORTED if high <= threshold else INCONCLUSIVE


def judge_scores(interval: tuple[float, float]) -> str:
    """Supported above zero, not supported below it; an end at zero itself decides nothing.

    Scores of answers are 0 and 1: over few questions an interval often ends at zero exactly, or has no width at all.

    >>> judge_scores((0.1, 0.3)), judge_scores((-0.6, -0.2)), judge_scores((-0.6, 0.0)), judge_scores((0.0, 0.0))
    ('supported', 'not supported', 'inconclusive', 'inconclusive')
    """
    return INCONCLUSIVE if interval[1] == 0 else judge(interval)


def interval_of_mean(values: Array) -> tuple[float, tuple[float, float]]:
    """Mean and its bootstrap interval; values that do not exist are left out.

    >>> interval_of_mean(np.array([0.5, 0.5, 0.5]))
    (0.5, (0.5, 0.5))
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return float("nan"), (float("nan"), float("nan"))
    return float(values.mean()), bootstrap((values,), lambda x, axis=-1: x.mean(axis=axis))


def interval_of_difference(
    left: Array, right: Array, left_ids: Sequence[str], right_ids: Sequence[str]
) -> tuple[float, tuple[float, float], int]:
    """Mean of `left` minus mean of `right`, its interval, and the number of samples (of the smaller side).

    Two models that were run on the same samples are compared sample by sample, which takes the samples' own
    difficulty out of the interval; otherwise the two sides are resampled on their own.
    """
    keep_left, keep_right = np.isfinite(left), np.isfinite(right)
    left, right = left[keep_left], right[keep_right]
    ids_left = [i for i, keep in zip(left_ids, keep_left, strict=True) if keep]
    ids_right = [i for i, keep in zip(right_ids, keep_right, strict=True) if keep]
    n = min(len(left), len(right))
    if not n:
        return float("nan"), (float("nan"), float("nan")), 0
    if "" not in ids_left and sorted(ids_left) == sorted(ids_right) and len(set(ids_left)) == len(ids_left):
        order = {name: place for place, name in enumerate(ids_right)}
        value, interval = interval_of_mean(left - right[[order[name] for name in ids_left]])
        return value, interval, n
    interval = bootstrap((left, right), lambda x, y, axis=-1: x.mean(axis=axis) - y.mean(axis=axis))
    return float(left.mean() - right.mean()), interval, n


def bootstrap(
    data: tuple[Array, ...], statistic: Callable[..., Any], *, paired: bool = False, vectorized: bool = True
) -> tuple[float, float]:
    """95 % interval of a statistic by scipy's bootstrap over samples: BCa, or percentile where BCa has no answer.

    The resampling is seeded, so the same samples give the same interval.
    """
    point = float(statistic(*data))
    if min(len(x) for x in data) < 2:
        return (float("nan"), float("nan"))
    if all(np.all(x == x[0]) for x in data):
        return (point, point)
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = stats.bootstrap(
                data,
                statistic,
                paired=paired,
                vectorized=vectorized,
                confidence_level=LEVEL,
                n_resamples=RESAMPLES if vectorized else 999,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        if np.isfinite(found.low) and np.isfinite(found.high):
            return float(found.low), float(found.high)
    return (float("nan"), float("nan"))


def too_few(n: int, what: str = "samples") -> str:
    """The reason when there are too few samples, else an empty string.

    >>> too_few(3)
    'only 3 samples can be used; at least 5 are needed'
    """
    return "" if n >= MIN_SAMPLES else f"only {n} {what} can be used; at least {MIN_SAMPLES} are needed"


def write_claims(path: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write verdicts to claims.json; those of other findings that the file holds already stay."""
    ours = {v.finding for v in verdicts}
    kept: list[dict[str, Any]] = []
    if path.exists():
        try:
            kept = [c for c in json.loads(path.read_text(encoding="utf-8"))["claims"] if c.get("finding") not in ours]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FloatLensError(
                f"{path} is not a claims file of floatlens; move it away or use another --out"
            ) from None
    with atomic_write(path) as temporary:
        text = json.dumps({"claims": kept + [v.to_dict() for v in verdicts]}, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def _number(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, float | np.floating):
        return _number(float(x))
    return x.item() if isinstance(x, np.generic) else x
