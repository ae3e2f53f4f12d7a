"""Summaries of the verdicts: one line per claim, and up to three sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from floatlens.findings.spelling import listed
from floatlens.findings.style import short
from floatlens.stats import DEPENDS, FAILS, HOLDS, INCONCLUSIVE, NOT_TESTABLE

SHORT = {HOLDS: "holds", FAILS: "fails", INCONCLUSIVE: "open", DEPENDS: "depends", NOT_TESTABLE: "not testable"}
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


def decided(claims: Claims) -> tuple[int, int]:
    """The number of claims that hold or fail, and the total number.

    >>> decided([{"verdict": "holds"}, {"verdict": "inconclusive"}])
    (1, 2)
    """
    return sum(claim["verdict"] in (HOLDS, FAILS) for claim in claims), len(claims)


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
    """Up to four sentences: on the anchors, on the sink, on its token type, on the use of passages."""
    found = by_claim([claim for claim in claims if claim["n"]])
    return [sentence for say in (_anchors, _sink, _token_type, _passages) if (sentence := say(found))]


def _anchors(found: dict[str, list[dict[str, Any]]]) -> str:
    renewal = found.get("drift.renewal", [])
    parts = []
    if moving := _models(renewal, HOLDS):
        share = max(100 * claim["value"] for claim in renewal if claim["verdict"] == HOLDS)
        parts.append(f"the anchors of {listed(moving)} float: up to {share:.0f} % lie elsewhere at the end of writing")
    if staying := _models(renewal, FAILS):
        parts.append(f"the anchors of {listed(staying)} stay")
    parts += _compare(found, "drift.moves", "they move more in {}", "they move no more in {}", " than in ")
    return _sentence(parts)


def _sink(found: dict[str, list[dict[str, Any]]]) -> str:
    sinks = found.get("absorption.sink", [])
    parts = [
        f"the first token of {short(claim['models'][0])} is a sink, with {claim['value']:.0f} points more than its share"
        for claim in sinks
        if claim["verdict"] == HOLDS
    ]
    if none := _models(sinks, FAILS):
        parts.append(f"that of {listed(none)} is none" if parts else f"the first token of {listed(none)} is no sink")
    parts += _compare(found, "absorption.more", "anchors take less in {}", "anchors take no less in {}", " than in ")
    return _sentence(parts)


def _token_type(found: dict[str, list[dict[str, Any]]]) -> str:
    """The statistics of the finding sink, with their intervals."""
    parts = []
    for name, text in (
        ("sink.type", "the sink of {} follows its token in {} of the texts more than other tokens"),
        ("sink.absent", "without that token type, floating of {} rises by {}"),
        ("sink.back", "one token put back lowers floating of {} by {}"),
    ):
        for claim in found.get(name, []):
            if claim["value"] is not None and None not in claim["interval"]:
                low, high = claim["interval"]
                value = f"{claim['value']:.2f} [{low:.2f}, {high:.2f}] ({claim['verdict']})"
                parts.append(text.format(short(claim["models"][0]), value))
    return _sentence(parts)


def _passages(found: dict[str, list[dict[str, Any]]]) -> str:
    parts = _compare(
        found,
        "knowledge.twice",
        "passages add twice as much to {}",
        "passages do not add twice as much to {}",
        " as to ",
    )
    parts += _compare(found, "knowledge.ahead", "with them {}", "with them {}", (" is ahead of ", " is not ahead of "))
    parts += _compare(found, "stress.noise", "noise costs {}", "noise costs {}", (" less than ", " no less than "))
    return _sentence(parts)


def _compare(
    found: dict[str, list[dict[str, Any]]], name: str, yes: str, no: str, between: str | tuple[str, str]
) -> list[str]:
    """Describe a claim that compares MDMs with an ARM; MDMs with the same verdict share one part."""
    words = (between, between) if isinstance(between, str) else between
    parts = []
    for verdict, text, word in ((HOLDS, yes, words[0]), (FAILS, no, words[1])):
        mdms_of: dict[str, list[str]] = {}
        for claim in found.get(name, []):
            if claim["verdict"] == verdict:
                mdm, arm = (short(model) for model in claim["models"][:2])
                mdms_of.setdefault(arm, []).append(mdm)
        pairs = []
        for arm, mdms in mdms_of.items():
            joined = word if len(mdms) == 1 else word.replace(" is ", " are ")
            pairs.append(f"{listed(mdms)}{joined}{arm}")
        if pairs:
            parts.append(text.format(listed(pairs)))
    return parts


def _models(claims: Claims, verdict: str) -> list[str]:
    return [short(claim["models"][0]) for claim in claims if claim["verdict"] == verdict]


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""
