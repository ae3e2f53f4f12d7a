"""The verdicts in words: up to five plain sentences, each a finding with its number and unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from floatlens.findings.spelling import count, percent
from floatlens.findings.style import short
from floatlens.stats import DEPENDS, FAILS, HOLDS, INCONCLUSIVE, NOT_TESTABLE

SHORT = {HOLDS: "holds", FAILS: "fails", INCONCLUSIVE: "open", DEPENDS: "depends", NOT_TESTABLE: "not testable"}
MOST = 5
CANDIDATE = re.compile(r"the candidate is (\S.*?)(?:;|$)")  # in the reason of a verdict of the finding sink
Claims = Sequence[dict[str, Any]]


def by_claim(claims: Claims) -> dict[str, list[dict[str, Any]]]:
    """Verdicts by claim, in order; one per model or pair of models."""
    found: dict[str, list[dict[str, Any]]] = {}
    for claim in claims:
        found.setdefault(claim.get("id") or claim["claim"], []).append(claim)
    return found


def count_verdicts(claims: Iterable[dict[str, Any]]) -> str:
    """A short summary of the verdicts on one claim.

    >>> count_verdicts([{"verdict": "holds"}, {"verdict": "holds"}])
    'holds (2)'
    >>> count_verdicts([{"verdict": "holds"}, {"verdict": "fails"}])
    'holds 1, fails 1'
    """
    counts = Counter(claim["verdict"] for claim in claims)
    if len(counts) == 1:
        verdict = next(iter(counts))
        return f"{verdict} ({counts[verdict]})"
    return ", ".join(f"{text} {counts[verdict]}" for verdict, text in SHORT.items() if counts[verdict])


def say_primary(claims: Claims) -> str:
    """A sentence on which verdicts are corrected for their number.

    >>> say_primary([{"primary": True, "p": 0.01}, {"primary": False, "p": None}])
    '1 verdict on a primary claim, corrected for their number (Holm); the other 1 is exploratory'
    """
    primary = sum(bool(claim.get("primary")) for claim in claims)
    others = len(claims) - primary
    verdicts = "1 verdict on a primary claim" if primary == 1 else f"{primary} verdicts on primary claims"
    return f"{verdicts}, corrected for their number (Holm); the other {others} {'is' if others == 1 else 'are'} exploratory"


def say_aloud(claims: Claims) -> list[str]:
    """Up to five sentences on the claims that hold or fail: the sink, its token, movement, passages."""
    decided = by_claim([claim for claim in claims if claim["verdict"] in (HOLDS, FAILS)])
    said = [text for say in (_first_token, _token_type, _floats, _moves, _passages, _noise) for text in say(decided)]
    if not said and claims:
        said = [f"None of {count(len(claims), 'verdict')} is decided: these samples are too few or too alike."]
    return said[:MOST]


def _first_token(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which models have a sink at the first token: on prose if that was read, otherwise on questions (ARMs only)."""
    name, scale = ("sink.first", 100) if "sink.first" in decided else ("absorption.sink", 1)
    said: list[str] = []
    for claim in sorted(decided.get(name, []), key=lambda claim: claim["verdict"] != HOLDS):
        model, extra = short(claim["models"][0]), scale * claim["value"]
        if not said:
            share = f"{_points(extra)} points more" if extra >= 0.5 else "no more"
            said.append(f"{model} gives its first token {share} attention than an even share")
        else:
            said.append(f"{model} gives it {_points(extra) if extra >= 0.5 else 'none'}")
    return [f"{'; '.join(said)}."] if said else []


def _token_type(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    said = []
    for claim in decided.get("sink.type", []):
        model, token = short(claim["models"][0]), _candidate(claim)
        follows = _first(claim["details"].get("candidate"), claim["value"])
        if claim["verdict"] == HOLDS:
            said.append(
                f"{model}'s sink is a token type: {token} draws it along in {percent(follows)} of its new places."
            )
    return said


def _floats(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What becomes of the anchors when the token of the sink is taken out, and when one is put back."""
    said: list[str] = []
    for claim in decided.get("sink.back", []) + decided.get("sink.absent", []):
        model, token = short(claim["models"][0]), _candidate(claim)
        out, other = claim["details"].get("out"), claim["details"].get("back", claim["details"].get("as is"))
        if (
            claim["verdict"] != HOLDS
            or out is None
            or any(text.startswith(f"Without {token}, {model}") for text in said)
        ):
            continue
        how = "with one put back" if "back" in claim["details"] else "in the text as it is"
        said.append(
            f"Without {token}, {model}'s anchors float: {percent(_first(out, 0.0))} of their attention moves from window to "
            f"window, {percent(_first(other, 0.0))} {how}."
        )
    return said


def _moves(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    said = []
    for claim in decided.get("drift.moves", []):
        if len(claim["models"]) > 1:
            mdm, arm = map(short, claim["models"][:2])
            more = "more" if claim["verdict"] == HOLDS else "no more"
            difference = f"a difference of {_points(100 * claim['value'])} points of their attention"
            said.append(f"Anchors move {more} in {mdm} than in {arm}: {difference}.")
    for claim in decided.get("drift.floats", []):
        much = percent(claim["value"]) if claim["verdict"] == HOLDS else "no"
        extra = "more of the attention on its anchors moves than the order of writing and an untrained network move"
        said.append(f"While {short(claim['models'][0])} writes, {much} {extra}.")
    for claim in decided.get("drift.renewal", []) if not said else []:
        share, model = percent(claim["value"]), short(claim["models"][0])
        much = share if claim["verdict"] == HOLDS else f"only {share}"
        said.append(f"When {model} has written its answer, {much} of the attention on its anchors lies elsewhere.")
    return said


def _passages(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    said = []
    for claim in decided.get("knowledge.gain", []):
        gains = [claim["details"].get(f"gain of the {kind}, points") for kind in ("MDM", "ARM")]
        if None not in gains and len(claim["models"]) > 1:
            mdm, arm = map(short, claim["models"][:2])
            said.append(f"Passages add {gains[0]:.0f} points of accuracy to {mdm}, and {gains[1]:.0f} to {arm}.")
    return said


def _noise(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [
        f"Noise costs {short(claim['models'][0])} {'less' if claim['verdict'] == HOLDS else 'no less'} than "
        f"{short(claim['models'][1])}: a difference of {_points(100 * claim['value'])} points of accuracy."
        for claim in decided.get("stress.noise", [])
        if len(claim["models"]) > 1
    ]


def _candidate(claim: dict[str, Any]) -> str:
    found = CANDIDATE.search(claim.get("reason", ""))
    return found[1] if found else "its token"


def _first(numbers: Any, otherwise: float) -> float:
    """A mean, alone or before its interval."""
    value = numbers[0] if isinstance(numbers, list | tuple) else numbers
    return otherwise if value is None else float(value)


def _points(value: float) -> str:
    """
    >>> _points(44.2), _points(-0.24), _points(-0.01)
    ('44', '−0.2', '0.0')
    """
    text = f"{value:.{0 if abs(value) >= 1 else 1}f}"
    return text.removeprefix("-") if not float(text) else text.replace("-", "−")
