"""Testing a claim: the outcome of its statistic over samples (`Outcome`), and the verdict that follows (`Verdict`).

Samples are paired by their id: a difference between models is taken question by question. Several models on one side
are averaged per question first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.files import atomic_write
from floatlens.findings.samples import Array, mean
from floatlens.stats import (
    INCONCLUSIVE,
    LEVEL,
    NAN,
    NO_INTERVAL,
    NOT_SUPPORTED,
    SUPPORTED,
    TOO_FEW,
    Interval,
    finite_or_none,
    holm,
    interval_of_contrast,
    interval_of_difference,
    interval_of_mean,
    judge,
    p_value,
)

KINDS = {"mdm": "MDM", "arm": "ARM"}


@dataclass(frozen=True)
class Verdict:
    """The result of testing a claim.

    `value` is the statistic, `interval` its 95 % interval over `n` samples, `effect` the smallest effect that matters,
    `reason` explains the verdict, and `details` holds further numbers. `id` and `source` are those of the claim. `p` is the
    two-sided p-value of the smallest effect by inverting the interval; NaN if there are too few samples.
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
    id: str = ""
    effect: float = NAN
    source: str = ""
    p: float = NAN

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is null."""
        order = ("id", "finding", "claim", "source", "statistic", "effect", "value", "interval", "p", "verdict", "rule")
        return {name: _plain(getattr(self, name)) for name in (*order, "n", "reason", "models", "details")}


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, float | np.floating):
        return finite_or_none(float(x))
    return x.item() if isinstance(x, np.generic) else x


def correct_for_number(claims: Sequence[dict[str, Any]]) -> None:
    """Add to each verdict its p-value by Holm's correction over all of them (`p_holm`), and whether it `survives`.

    A verdict survives if it is decided and its corrected p-value is below 0.05. Verdicts without a p-value are not counted.

    >>> claims = [{"p": 0.01, "verdict": "supported"}, {"p": 0.04, "verdict": "not supported"}, {"p": None, "verdict": ""}]
    >>> correct_for_number(claims)
    >>> [(claim["p_holm"], claim["survives"]) for claim in claims]
    [(0.02, True), (0.04, True), (None, False)]
    """
    found = [claim.get("p") for claim in claims]
    corrected = holm([NAN if p is None else p for p in found])
    for claim, p in zip(claims, corrected, strict=True):
        claim["p_holm"] = finite_or_none(float(p))
        claim["survives"] = claim["verdict"] in (SUPPORTED, NOT_SUPPORTED) and bool(p < 1 - LEVEL)


def write_claims(path: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write verdicts to claims.json; verdicts of other findings in an existing file are kept."""
    ours = {v.finding for v in verdicts}
    kept: list[dict[str, Any]] = []
    if path.exists():
        try:
            kept = [c for c in json.loads(path.read_text(encoding="utf-8"))["claims"] if c.get("finding") not in ours]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FloatLensError(f"{path} is not a claims file of floatlens; move it, or use another --out") from None
    claims = kept + [v.to_dict() for v in verdicts]
    correct_for_number(claims)
    with atomic_write(path) as temporary:
        text = json.dumps({"claims": claims}, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


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
        return next((verdict for verdict in (TOO_FEW, NOT_SUPPORTED, INCONCLUSIVE) if verdict in found), SUPPORTED)

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

    `values` has one number per sample, NaN for a sample without a value. Means and intervals of further numbers per sample
    (`beside`) go into the details. With `below` the mean must also lie below this bound.
    """
    rows = rows_of(measured, kind, model)
    models = names(measured, rows)
    if not len(rows):
        return missing(kind or "mdm", models)
    found = list(by_id(measured, values, rows).values())
    value, interval = interval_of_mean(found)
    details = {
        name: _flat(interval_of_mean(list(by_id(measured, numbers, rows).values())))
        for name, numbers in (beside or {}).items()
    }
    reason = "" if found else f"none of the {len(rows)} {what} has a value"
    more = {"reason": reason, "test": inverted(interval_of_mean, found), **more}
    return Outcome(value, interval, len(found), models, details, **more)


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
    rows, models, absent = _sides(measured, mdm, arm)
    if absent:
        return absent
    left, right = paired(measured, values, *rows)
    value, interval = interval_of_mean(sign * (left - right))
    details: dict[str, Any] = {"MDM": mean(left), "ARM": mean(right)}
    for name, numbers in (beside or {}).items():
        a, b = paired(measured, numbers, *rows)
        details[name] = _flat(interval_of_mean(sign * (a - b)))
    reason = (
        f"{details['MDM']:.{digits}f}{unit} in the MDM, {details['ARM']:.{digits}f}{unit} in the ARM"
        if len(left)
        else "the two models have no sample in common that has a value in both"
    )
    test = inverted(interval_of_mean, sign * (left - right))
    return Outcome(value, interval, len(left), models, details, reason, test=test)


def contrast(measured: xr.Dataset, scores_NK: Array, weights_K: Array, *, mdm: str | None, arm: str | None) -> Outcome:
    """Mean over questions of a weighted sum of scores under K conditions, the MDM's weights minus those of the ARM.

    `weights_K` holds the MDM's weights, then the ARM's. Scores that are all 0 or 1 take the interval for proportions.
    """
    rows, models, absent = _sides(measured, mdm, arm)
    if absent:
        return absent
    columns = [paired(measured, scores_N, *rows, keep=True) for scores_N in scores_NK.T]
    joined = np.column_stack([left for left, _ in columns] + [right for _, right in columns])
    joined = joined[np.isfinite(joined).all(axis=1)]
    if not len(joined):
        return Outcome(NAN, NO_INTERVAL, 0, models, reason="the two models have no question answered by both")
    binary = bool(np.isin(joined, (0.0, 1.0)).all())
    method: tuple[Any, ...] = (
        (interval_of_contrast, joined, weights_K) if binary else (interval_of_mean, joined @ weights_K)
    )
    value, interval = method[0](*method[1:])
    half = scores_NK.shape[1]
    details = {"MDM": mean(joined[:, :half] @ weights_K[:half]), "ARM": mean(joined[:, half:] @ -weights_K[half:])}
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
    details = {"first": mean(left), "last": mean(right)}
    reason = "" if len(left) else f"none of the {len(rows)} questions has a score under both conditions"
    return Outcome(value, ends, len(left), models, details, reason, test=inverted(interval, left, right))


def missing(kind: str, models: tuple[str, ...] = ()) -> Outcome:
    """No value, because no model of that kind is among the samples."""
    return Outcome(NAN, NO_INTERVAL, 0, models, reason=f"there is no {KINDS[kind]} among the samples")


def _sides(
    measured: xr.Dataset, mdm: str | None, arm: str | None
) -> tuple[tuple[Array, Array], tuple[str, ...], Outcome | None]:
    """The rows of the MDM and of the ARM, the models, and the outcome if one of the two is missing."""
    rows = rows_of(measured, "mdm", mdm), rows_of(measured, "arm", arm)
    models = names(measured, rows[0]) + names(measured, rows[1])
    absent = next((kind for kind, found in zip(KINDS, rows, strict=True) if not len(found)), None)
    return rows, models, missing(absent, models) if absent else None


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
    means = {name: mean(np.array(several)) for name, several in found.items()}
    return means if keep else {name: value for name, value in means.items() if np.isfinite(value)}


def paired(measured: xr.Dataset, values: Array, left: Array, right: Array, keep: bool = False) -> tuple[Array, Array]:
    """Values of the samples that both sides have, in the same order."""
    a, b = by_id(measured, values, left, keep), by_id(measured, values, right, keep)
    both = [name for name in a if name in b]
    return np.array([a[name] for name in both]), np.array([b[name] for name in both])


def _flat(found: tuple[float, Interval]) -> list[float]:
    """Value and interval as one list, for the details of a verdict."""
    return [found[0], *found[1]]
