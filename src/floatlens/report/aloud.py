"""Verdicts for people: one line per claim, and three sentences to say aloud."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from floatlens.findings.spelling import listed
from floatlens.findings.style import short
from floatlens.stats import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, TOO_FEW

SHORT = {SUPPORTED: "supported", NOT_SUPPORTED: "not", INCONCLUSIVE: "open", TOO_FEW: "too few samples"}
Claims = Sequence[dict[str, Any]]


def by_claim(claims: Claims) -> dict[str, list[dict[str, Any]]]:
    """Verdicts by claim, in order; one per model or pair of models."""
    found: dict[str, list[dict[str, Any]]] = {}
    for claim in claims:
        found.setdefault(claim.get("id") or claim["claim"], []).append(claim)
    return found


def count_verdicts(claims: Iterable[dict[str, Any]]) -> str:
    """The verdicts on one claim in a few words.

    >>> count_verdicts([{"verdict": "supported", "n": 20}, {"verdict": "supported", "n": 20}])
    'supported (2)'
    >>> count_verdicts([{"verdict": "supported", "n": 20}, {"verdict": "not supported", "n": 20}])
    'supported 1, not 1'
    """
    measured = [claim for claim in claims if claim["n"]]
    if not measured:
        return "not measured"
    counts = Counter(claim["verdict"] for claim in measured)
    if len(counts) == 1:
        verdict = next(iter(counts))
        return f"{verdict} ({counts[verdict]})"
    return ", ".join(f"{text} {counts[verdict]}" for verdict, text in SHORT.items() if counts[verdict])


def decided(claims: Claims) -> tuple[int, int]:
    """How many verdicts are supported or not supported, and how many there are in all.

    >>> decided([{"verdict": "supported"}, {"verdict": "inconclusive"}])
    (1, 2)
    """
    return sum(claim["verdict"] in (SUPPORTED, NOT_SUPPORTED) for claim in claims), len(claims)


def say_aloud(claims: Claims) -> list[str]:
    """Up to three sentences: on the anchors, on the sink, on the use of passages."""
    found = by_claim([claim for claim in claims if claim["n"]])
    return [sentence for say in (_anchors, _sink, _passages) if (sentence := say(found))]


def _anchors(found: dict[str, list[dict[str, Any]]]) -> str:
    renewal, moves = found.get("drift.renewal", []), found.get("drift.moves", [])
    parts = []
    moving, staying = _models(renewal, SUPPORTED), _models(renewal, NOT_SUPPORTED)
    if moving:
        share = max(100 * claim["value"] for claim in renewal if claim["verdict"] == SUPPORTED)
        parts.append(
            f"the anchors of {listed(moving)} float: up to {share:.0f} % of them lie elsewhere at the end of writing"
        )
    if staying:
        parts.append(f"those of {listed(staying)} stay")
    more, no_more = _pairs(moves, SUPPORTED), _pairs(moves, NOT_SUPPORTED)
    if more:
        parts.append(f"where tokens are written they move more in {listed(more)}")
    if no_more:
        parts.append(f"where tokens are written they do not move more in {listed(no_more)}")
    return _sentence(parts)


def _sink(found: dict[str, list[dict[str, Any]]]) -> str:
    sinks = found.get("absorption.sink", [])
    parts = []
    for claim in sinks:
        if claim["verdict"] == SUPPORTED:
            parts.append(
                f"{short(claim['models'][0])} has a sink: its first token takes {claim['value']:.0f} points more "
                "than its share"
            )
    if none := _models(sinks, NOT_SUPPORTED):
        parts.append(f"{listed(none)} {'has' if len(none) == 1 else 'have'} none")
    more = found.get("absorption.more", [])
    if pairs := _pairs(more, SUPPORTED):
        parts.append(f"anchors absorb less in {listed(pairs)}")
    if pairs := _pairs(more, NOT_SUPPORTED):
        parts.append(f"they do not absorb less in {listed(pairs)}")
    return _sentence(parts)


def _passages(found: dict[str, list[dict[str, Any]]]) -> str:
    parts = []
    for name, yes, no in (
        ("knowledge.twice", "passages add twice as much in {}", "passages do not add twice as much in {}"),
        ("knowledge.ahead", "with them {} is ahead", "with them the MDM is not ahead in {}"),
        ("stress.noise", "noise costs less in {}", "noise costs no less in {}"),
    ):
        for verdict, text in ((SUPPORTED, yes), (NOT_SUPPORTED, no)):
            if pairs := _pairs(found.get(name, []), verdict):
                parts.append(text.format(listed(pairs)))
    return _sentence(parts)


def _models(claims: Claims, verdict: str) -> list[str]:
    return [short(claim["models"][0]) for claim in claims if claim["verdict"] == verdict]


def _pairs(claims: Claims, verdict: str) -> list[str]:
    return [" than in ".join(short(m) for m in claim["models"][:2]) for claim in claims if claim["verdict"] == verdict]


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""
