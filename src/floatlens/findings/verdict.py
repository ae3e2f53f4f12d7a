"""The result of testing a claim: a statistic, its interval over samples, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.files import atomic_write
from floatlens.stats import LEVEL, NAN, NOT_SUPPORTED, SUPPORTED, finite_or_none, holm


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
    effect: float = float("nan")
    source: str = ""
    p: float = float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is null."""
        return {
            **{k: getattr(self, k) for k in ("id", "finding", "claim", "source", "statistic")},
            "effect": finite_or_none(self.effect),
            "value": finite_or_none(self.value),
            "interval": [finite_or_none(x) for x in self.interval],
            "p": finite_or_none(self.p),
            **{k: getattr(self, k) for k in ("verdict", "rule", "n", "reason")},
            "models": list(self.models),
            "details": _plain(self.details),
        }


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


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, float | np.floating):
        return finite_or_none(float(x))
    return x.item() if isinstance(x, np.generic) else x
