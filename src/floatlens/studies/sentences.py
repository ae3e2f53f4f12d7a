"""The verdicts in words: up to five plain sentences, each a finding with its number and unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from floatlens.findings.finding import CLAIMS
from floatlens.findings.spelling import count, listed, percent
from floatlens.findings.style import short
from floatlens.findings.verdict import by_claim
from floatlens.stats import DEPENDS, FAILS, HOLDS, INCONCLUSIVE, NOT_TESTABLE

SHORT = {HOLDS: "holds", FAILS: "fails", INCONCLUSIVE: "open", DEPENDS: "depends", NOT_TESTABLE: "not testable"}
MOST = 5
CANDIDATE = re.compile(r"the candidate is (\S.*?)(?:;|$)")  # in the reason of a verdict of the finding sink
Claims = Sequence[dict[str, Any]]
# The claims of which something is said, in this order: `aloud` and `aloud_fails` in claims.toml.
SAID = (
    "sink.type", "sink.back", "sink.absent", "drift.moves", "drift.floats", "drift.renewal", "knowledge.gain",
    "stress.noise",
)  # fmt: skip
# Not said of a model of which one of these is said.
INSTEAD = {"sink.absent": ("sink.back",), "drift.renewal": ("drift.moves", "drift.floats")}


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
    said, about = _first_token(decided), set()
    for id_ in SAID:
        for verdict, text in ((HOLDS, CLAIMS[id_].aloud), (FAILS, CLAIMS[id_].aloud_fails)):
            several = [claim for claim in decided.get(id_, ()) if claim["verdict"] == verdict]
            for other in INSTEAD.get(id_, ()):
                several = [claim for claim in several if (other, claim["models"][0]) not in about]
            about |= {(id_, claim["models"][0]) for claim in several if _fill(text, claim)}
            if re.findall(r"{.*?}", text) == ["{model}"] and several:  # without a number: one sentence for all models
                said.append(text.format(model=listed([short(claim["models"][0]) for claim in several])))
            else:
                said += filter(None, (_fill(text, claim) for claim in several))
    if not said and claims:
        return [f"None of {count(len(claims), 'verdict')} is decided: these samples are too few or too alike."]
    return said[:MOST]


def _first_token(decided: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which models have a sink at the first token: on prose if that was read, otherwise on questions (ARMs only)."""
    name, scale = ("sink.first", 100) if "sink.first" in decided else ("absorption.sink", 1)
    gives: list[str] = []
    without: list[str] = []
    for claim in sorted(decided.get(name, []), key=lambda claim: claim["verdict"] != HOLDS):
        model, extra = short(claim["models"][0]), scale * claim["value"]
        if extra < 0.5:
            without.append(model)
        elif not gives:
            gives.append(f"{model} gives its first token {_points(extra)} points more attention than an even share")
        else:
            gives.append(f"{model} gives it {_points(extra)}")
    if without and gives:
        gives.append(f"{listed(without)} {'gives' if len(without) == 1 else 'give'} it none")
    elif without:
        verb = "gives its" if len(without) == 1 else "give their"
        gives.append(f"{listed(without)} {verb} first token no more attention than an even share")
    return [f"{'; '.join(gives)}."] if gives else []


def _fill(text: str, claim: dict[str, Any]) -> str:
    """A sentence with the models and numbers of a claim; empty if the claim does not have them."""
    token = CANDIDATE.search(claim.get("reason", ""))
    known = {"token": token[1] if token else "its token", "value": percent(claim["value"])}
    known["points"] = _points(100 * claim["value"])
    known |= {place: short(model) for place, model in zip(("model", "other"), claim["models"], strict=False)}
    for name, numbers in claim["details"].items():
        value = numbers[0] if isinstance(numbers, list | tuple) else numbers  # a mean, alone or before its interval
        if isinstance(value, int | float):
            known[name] = _points(value) if name.endswith("points") else percent(value)
    try:
        return text.format_map(known)
    except KeyError:
        return ""


def _points(value: float) -> str:
    """
    >>> _points(44.2), _points(-0.24), _points(-0.01)
    ('44', '−0.2', '0.0')
    """
    text = f"{value:.{0 if abs(value) >= 1 else 1}f}"
    return text.removeprefix("-") if not float(text) else text.replace("-", "−")
