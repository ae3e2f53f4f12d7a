"""Is the answer right? Exact match, containment and token overlap after normalisation.

Normalisation and F1 are SQuAD's (Rajpurkar et al. 2016); accuracy is the paper's: the normalised gold answer stands
somewhere in the normalised answer. That counts "142" for "42", so the same by whole words is given beside it.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


class Scores(NamedTuple):
    """Scores of one answer, between 0 and 1; the best over all gold answers for each."""

    em: float
    accuracy: float
    accuracy_words: float
    f1: float


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces.

    >>> normalise("The  U.S.A.!")
    'usa'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """1 if both are the same after normalisation.

    >>> exact_match("The Paris.", "paris")
    1.0
    """
    return float(normalise(answer) == normalise(gold))


def accuracy(answer: str, gold: str) -> float:
    """1 if the normalised gold answer is contained in the normalised answer.

    >>> accuracy("It is 142", "42")
    1.0
    """
    wanted = normalise(gold)
    return float(bool(wanted) and wanted in normalise(answer))


def accuracy_words(answer: str, gold: str) -> float:
    """1 if the words of the gold answer stand in the answer, whole and next to each other.

    >>> accuracy_words("It is 142", "42"), accuracy_words("It is 42.", "42")
    (0.0, 1.0)
    """
    wanted = normalise(gold)
    return float(bool(wanted) and f" {wanted} " in f" {normalise(answer)} ")


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words.

    >>> round(f1("cat cat dog", "cat dog dog"), 3)
    0.667
    """
    said, wanted = normalise(answer).split(), normalise(gold).split()
    if not said or not wanted:
        return float(said == wanted)
    common = sum((Counter(said) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score(answer: str, golds: Iterable[Any]) -> Scores:
    """The best of each score over the gold answers; those that are blank or no strings do not count.

    >>> score("Paris is the capital", ["London", "Paris"])
    Scores(em=0.0, accuracy=1.0, accuracy_words=1.0, f1=0.5)
    >>> score("Paris", []).f1
    0.0
    """
    usable = [gold for gold in golds if isinstance(gold, str) and gold.strip()]
    measures = (exact_match, accuracy, accuracy_words, f1)
    return Scores(*(max((measure(answer, gold) for gold in usable), default=0.0) for measure in measures))
