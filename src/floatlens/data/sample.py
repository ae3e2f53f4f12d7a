"""A question with its answers and its passages: the value that every reader yields and every prompt is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Passage:
    """One retrieved text; `gold` if it holds the evidence for the answer.

    >>> Passage("It rains.", title="Weather").line
    'Weather: It rains.'
    """

    text: str
    title: str = ""
    gold: bool = False

    @property
    def line(self) -> str:
        """What the prompt shows of it, without the number."""
        return f"{self.title}: {self.text}" if self.title else self.text


@dataclass(frozen=True)
class Sample:
    """One question of a data set.

    `answers` are all accepted, in the data's order. `meta` holds what else the source says, such as its data set.
    """

    id: str
    question: str
    answers: list[str]
    passages: list[Passage] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gold(self) -> list[int]:
        """0-based places of the gold passages.

        >>> Sample("1", "Why?", ["so"], [Passage("a"), Passage("b", gold=True)]).gold
        [1]
        """
        return [i for i, passage in enumerate(self.passages) if passage.gold]

    def with_passages(self, passages: list[Passage]) -> Sample:
        """The same question with other passages."""
        return replace(self, passages=list(passages))
