"""The verdict on a claim: its statistic over samples, the interval, and what follows from them.

Samples are paired by their id: a difference between models is taken question by question. Several models on one side
are averaged per question first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from floatlens import stats
from floatlens.errors import FloatLensError
from floatlens.files import atomic_write
from floatlens.findings.samples import mean
from floatlens.stats import FAILS, HOLDS, INCONCLUSIVE, NAN, NO_INTERVAL, NOT_TESTABLE, VERDICTS, Array, Interval

KINDS = {"mdm": "MDM", "arm": "ARM"}


@dataclass(frozen=True)
class Verdict:
    """The result of testing a claim.

    `value` is the statistic, `interval` its 95 % interval over `n` samples of `models`, `effect` the smallest effect that
    matters, `reason` explains the verdict, and `details` holds further numbers. `id`, `whose`, `source` and `primary` are
    those of the claim; `setting` is what the models were given: "short" questions, questions with "passages", or "text".
    `p` is the p-value of the smallest effect, by inverting the interval, for a primary claim only.

    The test of a claim returns it without the claim's own fields, which `Claim.verdict` adds. It sets `verdict` only if
    that does not follow from the interval; `values` are the samples whose mean the statistic is.
    """

    finding: str = ""
    claim: str = ""
    statistic: str = ""
    value: float = NAN
    interval: Interval = NO_INTERVAL
    verdict: str = ""
    rule: str = ""
    n: int = 0
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
    values: Array | None = field(default=None, compare=False, repr=False)

    def unless(self, reason: str) -> Verdict:
        """Not testable for this reason if there is one; a verdict without samples keeps its own reason."""
        return replace(self, verdict=NOT_TESTABLE, reason=reason) if reason and self.n else self

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is null."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self) if each.name != "values"}


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, float | np.floating):
        return stats.finite_or_none(float(x))
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
    for claim, p in zip(primary, stats.holm([claim["p"] for claim in primary]), strict=True):
        if claim["verdict"] in (HOLDS, FAILS) and p >= 1 - stats.LEVEL:
            claim["verdict"] = INCONCLUSIVE
            claim["reason"] += f", but not after Holm's correction over {len(primary)} primary verdicts"


def by_claim(claims: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group verdicts by claim, in order."""
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


def write_numbers(measured: xr.Dataset, path: Path) -> Path:
    """Write the numbers of each sample and layer as one table; variables with more dimensions are in the figure's data."""
    names = [n for n, variable in measured.data_vars.items() if set(variable.dims) <= {"sample", "layer", "rule"}]
    with atomic_write(path) as temporary:
        measured[names].to_dataframe().reset_index().to_parquet(temporary, index=False)
    return path


def mean_of(
    measured: xr.Dataset,
    values: Array,
    *,
    kind: str | None = None,
    model: str | None = None,
    beside: Mapping[str, Array] | None = None,
    what: str = "samples",
    reason: str | None = None,
) -> Verdict:
    """Mean over the samples of one model, or of all models of a kind ("mdm", "arm").

    `values` has one number per sample, NaN for a sample without a value. Means and intervals of further numbers per sample
    (`beside`) go into the details.
    """
    found = _weigh(measured, {kind or "model": model}, values, (1.0,), beside)[1]
    if found.reason:
        return found
    none = "" if found.n else f"none of the {len(rows_of(measured, kind, model))} {what} has a value"
    return replace(found, reason=none if reason is None else reason)


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
) -> Verdict:
    """Masked diffusion model minus autoregressive model (reversed with `sign=-1`), question by question.

    Differences of the numbers in `beside` go into the details.
    """
    joined_N2, found = _weigh(measured, {"mdm": mdm, "arm": arm}, values, (sign, -sign), beside)
    if found.reason:
        return found
    left, right = mean(joined_N2[:, 0]), mean(joined_N2[:, 1])
    reason = f"{left:.{digits}f}{unit} in the MDM, {right:.{digits}f}{unit} in the ARM"
    if not found.n:
        reason = "the two models have no sample in common that has a value in both"
    return replace(found, details={"MDM": left, "ARM": right, **found.details}, reason=reason)


def contrast(measured: xr.Dataset, scores_NK: Array, weights_K: Array, *, mdm: str | None, arm: str | None) -> Verdict:
    """Mean over questions of a weighted sum of scores under K conditions, the MDM's weights minus those of the ARM.

    `weights_K` holds the MDM's weights, then the ARM's. Scores that are all 0 or 1 take the interval for proportions.
    """
    joined, found = _weigh(measured, {"mdm": mdm, "arm": arm}, scores_NK, weights_K, scores=True)
    if found.reason or not found.n:
        return replace(found, reason=found.reason or "the two models have no question answered by both")
    half = scores_NK.shape[1]
    sides = {"MDM": joined[:, :half] @ weights_K[:half], "ARM": joined[:, half:] @ -weights_K[half:]}
    return replace(found, details={kind: mean(values) for kind, values in sides.items()})


def change_under(measured: xr.Dataset, before: Array, under: Array, *, mdm: str | None) -> Verdict:
    """Mean over questions of the scores of an MDM under a first condition minus those under a second."""
    joined, found = _weigh(measured, {"mdm": mdm}, np.column_stack([before, under]), (1.0, -1.0), scores=True)
    if found.reason:
        return found
    count = len(rows_of(measured, "mdm", mdm))
    reason = "" if found.n else f"none of the {count} questions has a score under both conditions"
    return replace(found, details={"first": mean(joined[:, 0]), "last": mean(joined[:, 1])}, reason=reason)


def _weigh(
    measured: xr.Dataset,
    sides: Mapping[str, str | None],
    values: Array,
    weights: Sequence[float] | Array,
    beside: Mapping[str, Array] | None = None,
    scores: bool = False,
) -> tuple[Array, Verdict]:
    """The values (sample id, side × column) of the ids that have all of them, and their weighted sum, mean over ids.

    `values` are columns with one number per sample; each side weighs all of them. A sample without an id is combined with
    no other. `scores` that are all 0 or 1 take the intervals for proportions.
    """
    rows, known = sides_of(measured, **sides)
    ids = [str(name) or f"row {row}" for row, name in enumerate(measured["sample_id"].values)]
    table = pd.DataFrame(values.reshape(len(values), -1).astype(float), ids).replace([np.inf, -np.inf], np.nan)
    means = [table.iloc[own].groupby(level=0, sort=False).mean() for own in rows]  # over models, by id
    joined = pd.concat(means, axis=1, join="inner").dropna().to_numpy()
    if known.reason:
        return joined, known
    weighted = joined @ np.asarray(weights, float)
    value, interval = stats.interval_of_mean(weighted)
    if scores and len(joined) and bool(np.isin(joined, (0.0, 1.0)).all()):
        if joined.shape[1] == 2:
            value, interval = stats.interval_of_difference(*joined.T, binary=True)
        else:
            value, interval = stats.interval_of_contrast(joined, weights)
    others = {name: _weigh(measured, sides, numbers, weights)[1] for name, numbers in (beside or {}).items()}
    details = {name: [other.value, *other.interval] for name, other in others.items()}
    kept = None if scores else weighted
    return joined, replace(known, value=value, interval=interval, n=len(joined), details=details, values=kept)


def no_sink(measured: xr.Dataset, arm: str | None, least: float = 5.0) -> str:
    """Why a claim that presupposes a sink cannot be tested on this ARM; `least` is the effect of `absorption.sink`."""
    found = mean(measured["sink"].values[rows_of(measured, "arm", arm)])
    return f"no sink: position 0 gets {found:.1f} % beyond an even share, below {least:g}" if found < least else ""


def sides_of(measured: xr.Dataset, **sides: str | None) -> tuple[list[Array], Verdict]:
    """The rows of each side ("mdm", "arm", "model"; one model if it is named), and a verdict that names their models.

    The verdict has a reason if a side has no samples.
    """
    rows = [rows_of(measured, kind if kind in KINDS else None, model) for kind, model in sides.items()]
    models = [model for some in rows for model in dict.fromkeys(map(str, measured["model"].values[some]))]
    none = next((kind for kind, some in zip(sides, rows, strict=True) if not len(some)), None)
    reason = "" if none is None else f"there is no {KINDS.get(none, 'model')} among the samples"
    return rows, Verdict(models=tuple(models), reason=reason)


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
