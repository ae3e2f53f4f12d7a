"""Whole-word search for answers in passages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from floatlens.data.text import normalise


@cache
def padded(text: str) -> str:
    """Return the normalised text with a space at each end."""
    return f" {normalise(text)} "


def mentions(text: str, answers: Iterable[str]) -> bool:
    """Return whether any of the answers occurs in the text as whole words.

    >>> mentions("It is 142.", ["42"]), mentions("It is 42.", ["42"])
    (False, True)
    """
    whole = padded(text)
    return any(padded(answer) in whole for answer in answers)
