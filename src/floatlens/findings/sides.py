"""Claims about one model or between two: who is on which side, and what is said when a side is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.findings.samples import Array
from floatlens.findings.verdict import Verdict
from floatlens.stats import (
    INCONCLUSIVE,
    NOT_SUPPORTED,
    SUPPORTED,
    bootstrap_difference,
    bootstrap_mean,
    judge_threshold,
    too_few,
)

NAN = (float("nan"), float("nan"))


def side(measured: xr.Dataset, kind: str, model: str | None) -> Array:
    """Rows of the samples on one side: MDMs or ARMs, of one model when it is named."""
    rows = measured["model_kind"].values == kind
    if model is not None:
        if model not in measured["model"].values:
            known = ", ".join(dict.fromkeys(map(str, measured["model"].values)))
            raise FloatLensError(f"there are no samples of model {model!r}; there are {known}")
        rows &= measured["model"].values == model
    return np.flatnonzero(rows)


def names(measured: xr.Dataset, rows: Array) -> tuple[str, ...]:
    """The models of these rows, each once."""
    return tuple(dict.fromkeys(str(m) for m in measured["model"].values[rows]))


def one_side(
    measured: xr.Dataset,
    values: Array,
    *,
    finding: str,
    claim: str,
    statistic: str,
    mdm: str | None,
    also: Mapping[str, Array] | None = None,
    beside: Mapping[str, Array] | None = None,
    estimate: Callable[[Array], tuple[float, tuple[float, float]]] | None = None,
    objection: Callable[[Array], str] | None = None,
    what: str = "samples",
) -> Verdict:
    """A claim on the MDM alone: the mean of `values` (one a sample) lies above zero.

    What `also` names must lie above zero too for the claim to hold; what `beside` names is reported only.
    `estimate(rows)` replaces the mean and its interval, `objection(rows)` may say why the samples cannot decide.
    """
    rows = side(measured, "mdm", mdm)
    usable = rows[np.isfinite(values[rows])]
    value, interval = float("nan"), NAN
    if len(usable):
        value, interval = estimate(usable) if estimate else bootstrap_mean(values[usable])
    details = {name: _with_interval(numbers[usable]) for name, numbers in {**(also or {}), **(beside or {})}.items()}
    reason = "there is no MDM among the traces" if not len(rows) else too_few(len(usable), what)
    reason = reason or (objection(usable) if objection else "")
    verdict = INCONCLUSIVE
    if not reason:
        judged = {
            "the statistic": judge_threshold(interval),
            **{n: judge_threshold((details[n][1], details[n][2])) for n in also or {}},
        }
        verdict = min(judged.values(), key=(NOT_SUPPORTED, INCONCLUSIVE, SUPPORTED).index)
        failing = " and ".join(name for name, found in judged.items() if found == verdict)
        if verdict != SUPPORTED:
            reason = f"{failing} {'is not above' if verdict == NOT_SUPPORTED else 'cannot be told from'} zero"
    return Verdict(
        finding,
        claim,
        statistic,
        value,
        interval,
        verdict,
        rule=str(measured.attrs.get("rule", "")),
        n=len(usable),
        models=names(measured, rows),
        reason=reason,
        details=details,
    )


def _with_interval(values: Array) -> list[float]:
    mean, interval = bootstrap_mean(values)
    return [mean, *interval]


def compare(
    measured: xr.Dataset,
    values: Array,
    *,
    finding: str,
    claim: str,
    statistic: str,
    mdm: str | None,
    arm: str | None,
    decide: Callable[[tuple[float, float], dict[str, Array]], tuple[str, str, dict[str, Any]]],
    sign: int = 1,
) -> Verdict:
    """A claim between an MDM and an ARM on the difference of means (MDM − ARM, or turned round with `sign=-1`).

    `decide(interval, sides)` gives verdict, reason and details; it is asked only when both sides have enough samples.
    """
    rows = {"mdm": side(measured, "mdm", mdm), "arm": side(measured, "arm", arm)}
    used = {name: r[np.isfinite(values[r])] for name, r in rows.items()}
    rule, models = str(measured.attrs.get("rule", "")), names(measured, rows["mdm"]) + names(measured, rows["arm"])
    for name, what in (("mdm", "MDM"), ("arm", "ARM")):
        if not len(rows[name]):
            reason = f"there is no {what} among the traces to compare with"
            return Verdict(finding, claim, statistic, float("nan"), NAN, INCONCLUSIVE, rule, 0, models, reason)
    ids = {name: [str(i) for i in measured["sample_id"].values[r]] for name, r in used.items()}
    value, interval, n = bootstrap_difference(values[used["mdm"]], values[used["arm"]], ids["mdm"], ids["arm"])
    if sign < 0:
        value, interval = -value, (-interval[1], -interval[0])
    sides = {**used, "mdm_values": values[used["mdm"]], "arm_values": values[used["arm"]]}
    verdict, reason, details = decide(interval, sides)
    if few := too_few(n):
        verdict, reason = INCONCLUSIVE, few
    return Verdict(finding, claim, statistic, value, interval, verdict, rule, n, models, reason, details)
