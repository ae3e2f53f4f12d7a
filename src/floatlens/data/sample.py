"""Samples: a question with its answers and passages. Every reader yields them and every prompt is built from one.

Texts are compared after SQuAD's normalisation (Rajpurkar et al. 2016): by retrieval and the stress tests to recognise
passages and answers, by the metrics to score answers.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Passage:
    """A text shown with a question; `gold` if it holds the evidence for the answer.

    >>> Passage("It rains.", title="Weather").line
    'Weather: It rains.'
    """

    text: str
    title: str = ""
    gold: bool = False

    @property
    def line(self) -> str:
        """The text as the prompt shows it, after its number."""
        return f"{self.title}: {self.text}" if self.title else self.text


@dataclass(frozen=True)
class Sample:
    """One question of a data set."""

    id: str  # unique in the data set
    question: str
    answers: list[str]  # gold answers; each of them counts as correct
    passages: list[Passage] = field(default_factory=list)  # texts to answer from
    meta: Mapping[str, Any] = field(default_factory=dict)  # further fields of the source, such as the kind of question
    infill: bool = False  # whether the question is a text with [MASK] where the answer goes
    continuation: bool = False  # whether the question is a text that the model continues, without template

    @property
    def gold(self) -> list[int]:
        """Indices of the gold passages, counted from 0."""
        return [i for i, passage in enumerate(self.passages) if passage.gold]

    def with_passages(self, passages: list[Passage]) -> Sample:
        """Return the same question with other passages."""
        return replace(self, passages=list(passages))


def gold_among(sample: Sample, count: int) -> Sample:
    """Return the question with its gold passages and the first others, `count` in all, in their original order."""
    gold = sample.gold[:count]
    others = [i for i, passage in enumerate(sample.passages) if not passage.gold][: count - len(gold)]
    return sample.with_passages([sample.passages[i] for i in sorted(gold + others)])


def move_gold(sample: Sample, position: int, count: int) -> Sample:
    """Return the question with its gold passages next to each other from `position` on, among the first others."""
    gold = [p for p in sample.passages if p.gold]
    others = [p for p in sample.passages if not p.gold][: count - len(gold)]
    return sample.with_passages(insert_at(position, gold, others))


def insert_at(position: int, gold: list[Passage], others: list[Passage]) -> list[Passage]:
    """Return the other passages with the gold ones next to each other from `position` on, or at the end."""
    at = min(position, len(others))
    return [*others[:at], *gold, *others[at:]]


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and English articles, with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def contains_words(text: str, phrase: str) -> bool:
    """Return whether the words of a phrase occur in a text, whole and next to each other, after normalisation."""
    wanted = normalise(phrase)
    return bool(wanted) and f" {wanted} " in f" {normalise(text)} "
