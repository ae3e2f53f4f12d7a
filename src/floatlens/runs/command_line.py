"""The command line that is being run, for the manifest: it is what `floatlens rerun` runs again."""

from __future__ import annotations

from collections.abc import Sequence

_WORDS: list[str] = []


def remember(words: Sequence[str]) -> None:
    """Note the words after `floatlens`."""
    _WORDS[:] = words


def words() -> list[str]:
    """The words that were noted last.

    >>> remember(["models"]); words()
    ['models']
    """
    return list(_WORDS)
