"""Facts of the atlas by name, and whole-word search by the rules of the scores, fast enough for every passage."""

from __future__ import annotations

from functools import cache

from floatlens.data.atlas import Question, facts
from floatlens.data.sample import normalise


@cache
def _known() -> dict[tuple[str, str], Question]:
    return {(fact.relation, fact.subject): fact for fact in facts()}


def fact(relation: str, subject: str) -> Question | None:
    """The fact about a subject."""
    return _known().get((relation, subject))


def statements(item: Question) -> list[str]:
    """All passages that state a fact."""
    [(_, texts)] = item.evidence
    return texts


@cache
def plain(text: str) -> str:
    return f" {normalise(text)} "


def says(text: str, *answers: str) -> bool:
    """Whether `floatlens.evaluation.metrics.accuracy_words` finds one of the answers in the text."""
    return any(plain(answer) in plain(text) for answer in answers)
