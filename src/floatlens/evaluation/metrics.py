"""Scores of an answer: exact match, containment and overlap of words, after normalisation.

Normalisation and F1 are SQuAD's (Rajpurkar et al. 2016); accuracy is the paper's: the normalised gold answer occurs
somewhere in the normalised answer. That counts "142" for "42", so `accuracy_words` counts whole words only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from floatlens.data.sample import contains_words, normalise

SCORES = ("em", "accuracy", "accuracy_words", "f1")


def exact_match(answer: str, gold: str) -> float:
    """Return 1 if both are the same after normalisation."""
    return float(normalise(answer) == normalise(gold))


def accuracy(answer: str, gold: str) -> float:
    """Return 1 if the normalised answer contains the normalised gold answer."""
    wanted = normalise(gold)
    return float(bool(wanted) and wanted in normalise(answer))


def accuracy_words(answer: str, gold: str) -> float:
    """Return 1 if the answer contains the words of the gold answer, whole and next to each other."""
    return float(contains_words(answer, gold))


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall of the words.

    >>> round(f1("cat cat dog", "cat dog dog"), 3)
    0.667
    """
    words, wanted = normalise(answer).split(), normalise(gold).split()
    if not words or not wanted:
        return float(words == wanted)
    common = sum((Counter(words) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score(answer: str, golds: Iterable[Any]) -> dict[str, float]:
    """Return the best of each of `SCORES` over the gold answers; blank answers and non-strings are ignored.

    >>> score("Paris is the capital", ["London", "Paris"])
    {'em': 0.0, 'accuracy': 1.0, 'accuracy_words': 1.0, 'f1': 0.5}
    """
    usable = [gold for gold in golds if isinstance(gold, str) and gold.strip()]
    measures = zip(SCORES, (exact_match, accuracy, accuracy_words, f1), strict=True)
    return {name: max((measure(answer, gold) for gold in usable), default=0.0) for name, measure in measures}
