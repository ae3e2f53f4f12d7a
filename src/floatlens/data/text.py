"""Normalise text for comparison, and search for whole words.

Normalisation is SQuAD's (Rajpurkar et al. 2016). Retrieval and the stress tests use it to recognise passages and
answers, the metrics to score answers.
"""

from __future__ import annotations

import re
import string

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and English articles, with single spaces.

    >>> normalise("The  U.S.A.!")
    'usa'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def contains_words(text: str, phrase: str) -> bool:
    """Return whether the words of a phrase occur in a text, whole and next to each other, after normalisation.

    >>> contains_words("It is 142", "42"), contains_words("It is 42.", "42")
    (False, True)
    """
    wanted = normalise(phrase)
    return bool(wanted) and f" {wanted} " in f" {normalise(text)} "
