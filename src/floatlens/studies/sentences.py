"""Summaries of the verdicts: one line per claim, and up to three sentences."""

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
    """A short summary of the verdicts on one claim.

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
    """The number of verdicts that are supported or not supported, and the total number.

    >>> decided([{"verdict": "supported"}, {"verdict": "inconclusive"}])
    (1, 2)
    """
    return sum(claim["verdict"] in (SUPPORTED, NOT_SUPPORTED) for claim in claims), len(claims)


def say_corrected(claims: Claims) -> str:
    """A sentence on how many decided verdicts survive Holm's correction; empty if none is decided.

    >>> say_corrected([{"verdict": "supported", "p": 0.01, "survives": True}, {"verdict": "inconclusive", "p": 0.3}])
    "1 of 1 decided verdicts survives Holm's correction over all 2 claims and models"
    """
    several = [claim for claim in claims if claim["verdict"] in (SUPPORTED, NOT_SUPPORTED)]
    if not several:
        return ""
    kept, every = (
        sum(bool(claim.get("survives")) for claim in several),
        sum(claim.get("p") is not None for claim in claims),
    )
    verb = "survives" if kept == 1 else "survive"
    return f"{kept} of {len(several)} decided verdicts {verb} Holm's correction over all {every} claims and models"


def say_aloud(claims: Claims) -> list[str]:
    """Up to three sentences: on the anchors, on the sink, on the use of passages."""
    found = by_claim([claim for claim in claims if claim["n"]])
    return [sentence for say in (_anchors, _sink, _passages) if (sentence := say(found))]


def _anchors(found: dict[str, list[dict[str, Any]]]) -> str:
    renewal = found.get("drift.renewal", [])
    parts = []
    if moving := _models(renewal, SUPPORTED):
        share = max(100 * claim["value"] for claim in renewal if claim["verdict"] == SUPPORTED)
        parts.append(f"the anchors of {listed(moving)} float: up to {share:.0f} % lie elsewhere at the end of writing")
    if staying := _models(renewal, NOT_SUPPORTED):
        parts.append(f"the anchors of {listed(staying)} stay")
    parts += _compare(found, "drift.moves", "they move more in {}", "they move no more in {}", " than in ")
    return _sentence(parts)


def _sink(found: dict[str, list[dict[str, Any]]]) -> str:
    sinks = found.get("absorption.sink", [])
    parts = [
        f"the first token of {short(claim['models'][0])} is a sink, with {claim['value']:.0f} points more than its share"
        for claim in sinks
        if claim["verdict"] == SUPPORTED
    ]
    if none := _models(sinks, NOT_SUPPORTED):
        parts.append(f"that of {listed(none)} is none" if parts else f"the first token of {listed(none)} is no sink")
    parts += _compare(found, "absorption.more", "anchors take less in {}", "anchors take no less in {}", " than in ")
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
    for verdict, text, word in ((SUPPORTED, yes, words[0]), (NOT_SUPPORTED, no, words[1])):
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
