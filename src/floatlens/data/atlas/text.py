"""Whole-word search in passages, as answers are scored: without case, punctuation and articles."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from functools import cache

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


@cache
def plain(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces, a space at each end.

    >>> plain("The  U.S.A.!")
    ' usa '
    """
    return f" {' '.join(ARTICLES.sub(' ', text.lower().translate(PUNCTUATION)).split())} "


def mentions(text: str, answers: Iterable[str]) -> bool:
    """Whether any of the answers stands in the text as whole words.

    >>> mentions("It is 142.", ["42"]), mentions("It is 42.", ["42"])
    (False, True)
    """
    whole = plain(text)
    return any(plain(answer) in whole for answer in answers)
