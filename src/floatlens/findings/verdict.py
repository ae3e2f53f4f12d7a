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
from floatlens.stats import finite_or_none


@dataclass(frozen=True)
class Verdict:
    """The result of testing a claim.

    `value` is the statistic, `interval` its 95 % interval over `n` samples, `effect` the smallest effect that matters,
    `reason` explains the verdict, and `details` holds further numbers. `id` and `source` are those of the claim.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is null."""
        return {
            **{k: getattr(self, k) for k in ("id", "finding", "claim", "source", "statistic")},
            "effect": finite_or_none(self.effect),
            "value": finite_or_none(self.value),
            "interval": [finite_or_none(x) for x in self.interval],
            **{k: getattr(self, k) for k in ("verdict", "rule", "n", "reason")},
            "models": list(self.models),
            "details": _plain(self.details),
        }


def write_claims(path: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write verdicts to claims.json; those of other findings that the file holds already stay."""
    ours = {v.finding for v in verdicts}
    kept: list[dict[str, Any]] = []
    if path.exists():
        try:
            kept = [c for c in json.loads(path.read_text(encoding="utf-8"))["claims"] if c.get("finding") not in ours]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FloatLensError(f"{path} is not a claims file of floatlens; move it, or use another --out") from None
    with atomic_write(path) as temporary:
        text = json.dumps({"claims": kept + [v.to_dict() for v in verdicts]}, indent=2, ensure_ascii=False)
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
