"""Testing a claim: the outcome of its statistic over samples (`Outcome`), and the verdict that follows (`Verdict`).

Samples are paired by their id: a difference between models is taken question by question. Several models on one side
are averaged per question first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.files import atomic_write
from floatlens.findings.samples import Array, mean
from floatlens.stats import (
    DEPENDS,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    LEVEL,
    NAN,
    NO_INTERVAL,
    NOT_TESTABLE,
    SMALLEST_N,
    VERDICTS,
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
    `reason` explains the verdict, and `details` holds further numbers. `id`, `whose`, `source` and `primary` are those of
    the claim; `setting` is what the models were given: "short" questions, questions with "passages", or "text".
    `p` is the p-value of the smallest effect, by inverting the interval, for a primary claim only.
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
    whose: str = ""
    source: str = ""
    primary: bool = False
    setting: str = ""
    p: float = NAN

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is null."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, float | np.floating):
        return finite_or_none(float(x))
    return x.item() if isinstance(x, np.generic) else x


def correct_primary(claims: Sequence[dict[str, Any]]) -> None:
    """Correct the verdicts on primary claims for their number: one that Holm's correction undoes becomes inconclusive.

    The verdicts on all other claims are exploratory and stay as they are, however many there are.

    >>> claims = [{"primary": True, "p": p, "verdict": "holds", "reason": "above 0.1"} for p in (0.01, 0.03, 0.04)]
    >>> correct_primary(claims)
    >>> [claim["verdict"] for claim in claims], claims[1]["reason"]
    (['holds', 'inconclusive', 'inconclusive'], "above 0.1, but not after Holm's correction over 3 primary verdicts")
    """
    primary = [claim for claim in claims if claim.get("primary") and claim.get("p") is not None]
    for claim, p in zip(primary, holm([claim["p"] for claim in primary]), strict=True):
        if claim["verdict"] in (HOLDS, FAILS) and p >= 1 - LEVEL:
            claim["verdict"] = INCONCLUSIVE
            claim["reason"] += f", but not after Holm's correction over {len(primary)} primary verdicts"


def by_claim(claims: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Verdicts by claim, in order; one per model or pair of models."""
    found: dict[str, list[dict[str, Any]]] = {}
    for claim in claims:
        found.setdefault(claim.get("id") or claim["claim"], []).append(claim)
    return found


def write_claims(path: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write verdicts to claims.json; verdicts of other findings in an existing file are kept."""
    ours = {v.finding for v in verdicts}
    kept: list[dict[str, Any]] = []
    if path.exists():
        try:
            kept = [c for c in json.loads(path.read_text(encoding="utf-8"))["claims"] if c.get("finding") not in ours]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FloatLensError(f"{path} is not a claims file of floatlens; move it, or use another --out") from None
    if any(c.get("verdict") not in VERDICTS for c in kept):
        raise FloatLensError(f"{path} has verdicts of an earlier version of floatlens; move it, or use another --out")
    claims = kept + [v.to_dict() for v in verdicts]
    correct_primary(claims)
    with atomic_write(path) as temporary:
        text = json.dumps({"claims": claims}, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True)
class Outcome:
    """A statistic with its 95 % interval over `n` samples of `models`.

    `details` holds further numbers. `blocked` is the reason why the claim cannot be tested on these samples, regardless of
    the interval; `reason` adds to that of the verdict. `test` returns the p-value of a null by inverting the interval.
    `below` is a second condition: the statistic must also lie below this bound. `by_rule` are the intervals by each anchor
    rule: the verdict depends on the rule if some lie above 0 and others below.
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
    by_rule: Mapping[str, Interval] = field(default_factory=dict)

    def judge(self, effect: float) -> tuple[str, str]:
        """Verdict on all conditions, and its reason: it holds if all do, fails if one does, is otherwise inconclusive."""
        if self.blocked:
            return NOT_TESTABLE, self.blocked
        if self.n < SMALLEST_N:
            few = f"too few samples: {self.n} with a value, at least {SMALLEST_N} are needed"
            return NOT_TESTABLE, self.reason if self.reason and not self.n else few
        above = [rule for rule, (low, _) in self.by_rule.items() if low > 0]
        under = [rule for rule, (_, high) in self.by_rule.items() if high < 0]
        if above and under:
            return DEPENDS, f"above 0 by {', '.join(above)}; below 0 by {', '.join(under)}"
        found = [judge(self.value, self.interval, self.n, effect)]
        if self.below is not None:
            low, high = self.interval
            found.append(judge(-self.value, (-high, -low), self.n, -self.below))
        verdict = next((one for one in (NOT_TESTABLE, FAILS, INCONCLUSIVE) if one in found), HOLDS)
        bounds = f"{effect:g}" if self.below is None else f"{effect:g} to {self.below:g}"
        sides = ("lies above", "lies below") if self.below is None else ("lies within", "lies outside")
        side = {HOLDS: sides[0], FAILS: sides[1], INCONCLUSIVE: "includes"}.get(verdict)
        parts = [f"the interval {side} {bounds}" if side else "the statistic has no interval", self.reason]
        return verdict, "; ".join(part for part in parts if part)


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
    rows, models, none = _sides(measured, mdm, arm)
    if none:
        return none
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
    rows, models, none = _sides(measured, mdm, arm)
    if none:
        return none
    columns = [paired(measured, scores_N, *rows, keep=True) for scores_N in scores_NK.T]
    joined = np.column_stack([left for left, _ in columns] + [right for _, right in columns])
    joined = joined[np.isfinite(joined).all(axis=1)]
    if not len(joined):
        return absent("the two models have no question answered by both", models)
    binary = bool(np.isin(joined, (0.0, 1.0)).all())
    value, interval = interval_of_contrast(joined, weights_K) if binary else interval_of_mean(joined @ weights_K)
    half = scores_NK.shape[1]
    details = {"MDM": mean(joined[:, :half] @ weights_K[:half]), "ARM": mean(joined[:, half:] @ -weights_K[half:])}
    return Outcome(value, interval, len(joined), models, details)


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
    value, ends = interval_of_difference(left, right, binary=binary)
    details = {"first": mean(left), "last": mean(right)}
    reason = "" if len(left) else f"none of the {len(rows)} questions has a score under both conditions"
    return Outcome(value, ends, len(left), models, details, reason)


def no_sink(measured: xr.Dataset, arm: str | None, least: float = 5.0) -> str:
    """Why a claim that presupposes a sink cannot be tested on this ARM; empty if its first token is one.

    `sink` (sample, or sample × layer) is the attention on position 0 beyond an even share, in percent; `least` is the
    smallest effect of `absorption.sink`.
    """
    found = mean(measured["sink"].values[rows_of(measured, "arm", arm)])
    return f"no sink: position 0 gets {found:.1f} % beyond an even share, below {least:g}" if found < least else ""


def too_shallow(measured: xr.Dataset, layers: int, models: Mapping[str, str | None]) -> str:
    """Why a claim that needs a number of layers cannot be tested on these models; empty if all of them have as many."""
    wanted = [model for model in models.values() if model] or names(measured, rows_of(measured, None, None))
    for model in wanted if layers else ():
        count = int(np.isfinite(measured["depth"].values[rows_of(measured, None, model)]).sum(axis=1).max(initial=0))
        if count < layers:
            return f"{model} has {count} layers; at least {layers} are needed"
    return ""


def absent(reason: str, models: tuple[str, ...] = ()) -> Outcome:
    """No value, for this reason."""
    return Outcome(NAN, NO_INTERVAL, 0, models, reason=reason)


def missing(kind: str, models: tuple[str, ...] = ()) -> Outcome:
    """No value, because no model of that kind is among the samples."""
    return absent(f"there is no {KINDS[kind]} among the samples", models)


def _sides(
    measured: xr.Dataset, mdm: str | None, arm: str | None
) -> tuple[tuple[Array, Array], tuple[str, ...], Outcome | None]:
    """The rows of the MDM and of the ARM, the models, and the outcome if one of the two is missing."""
    rows = rows_of(measured, "mdm", mdm), rows_of(measured, "arm", arm)
    models = names(measured, rows[0]) + names(measured, rows[1])
    kind = next((kind for kind, found in zip(KINDS, rows, strict=True) if not len(found)), None)
    return rows, models, missing(kind, models) if kind else None


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
