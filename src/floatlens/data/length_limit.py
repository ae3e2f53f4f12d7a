"""Text that cannot fit a model is refused by its length, before a tokenizer spends minutes and gigabytes on it."""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Passage
from floatlens.errors import FloatLensError

LONGEST = 64  # characters that a token has at most, outside of runs of blanks


def bounded(question: str, passages: Sequence[Passage], context: int | None) -> list[Passage]:
    """The passages up to where no more can fit the context; FloatLensError if the question alone cannot.

    >>> len(bounded("Who?", [Passage("a" * 100), Passage("b" * 99_000), Passage("c")], 512))
    2
    """
    if context is None:
        return list(passages)
    room = context * LONGEST
    if len(question) > room:
        raise FloatLensError(
            f"the question has {len(question):,} characters, and the model reads {context} tokens; shorten the question"
        )
    kept: list[Passage] = []
    for passage in passages:
        if room < 0:
            break
        kept.append(Passage(passage.text[: room + 1], passage.title[: room + 1], passage.gold))
        room -= len(passage.text) + len(passage.title)
    return kept
