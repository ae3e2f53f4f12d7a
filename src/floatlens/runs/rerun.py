"""Run again what a manifest describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatlens.errors import FloatLensError

AGAIN = ("trace", "eval", "stress", "ablate", "study", "demo")  # commands that make a run of their own
DROPPED = ("--resume", "--retry-errors", "--json")


def words_again(manifest: Mapping[str, Any], out: str, where: str) -> list[str]:
    """The command line of a run, with another --out and without what belongs to a first attempt.

    >>> words_again({"words": ["eval", "tiny-mdm", "--out", "a", "--resume"]}, "b", "a")
    ['eval', 'tiny-mdm', '--out', 'b']
    """
    words = manifest.get("words")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise FloatLensError(f"{where} does not say by which command it was made, so it cannot be run again")
    if words[0] not in AGAIN:
        raise FloatLensError(f"{where} was made by {words[0]!r}, which is not run again; known are {', '.join(AGAIN)}")
    return [*_without_out([word for word in words if word not in DROPPED]), "--out", out]


def _without_out(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "--out":
            skip = True
        elif not word.startswith("--out="):
            kept.append(word)
    return kept
