"""Two-hop questions of the atlas: pairs of facts that share a bridge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from floatlens.data.atlas.facts import HOPS, AtlasFact, capitalise, facts
from floatlens.data.atlas.relations import AtlasHop
from floatlens.data.text import normalise

SHARED_PEAKS = {"Mont Blanc", "Mount Everest"}  # each is the highest mountain of two countries


@dataclass(frozen=True)
class Chain:
    """A question that needs two facts; `start` is named in the question, `bridge` connects the facts."""

    hop: AtlasHop
    first: AtlasFact
    second: AtlasFact
    start: str
    bridge: str

    @property
    def split(self) -> str:
        return self.first.split

    @property
    def relation(self) -> str:
        """Both relations, as in `currency of capital`."""
        return f"{self.hop.first} of {self.hop.second}"

    def first_statements(self) -> list[str]:
        """Passages of the first fact that do not mention the end."""
        return [text for text in self.first.statements if not mentions(text, self.second.answers)]

    def second_statements(self) -> list[str]:
        """Passages of the second fact that do not mention the start."""
        return [text for text in self.second.statements if not mentions(text, (self.start,))]

    @property
    def questions(self) -> list[str]:
        """All phrasings of the question."""
        words = dict(self.first.words) | {"s": self.start}
        return [capitalise(question.format(**words)) for question in self.hop.questions]


@cache
def chains() -> tuple[Chain, ...]:
    """All chains whose question has one answer and does not give away the bridge or the end."""
    about = {(fact.relation, fact.subject): fact for fact in facts()}
    found = []
    for hop in HOPS:
        firsts = [fact for fact in facts() if fact.relation == hop.first]
        times = Counter(fact.answer for fact in firsts)
        for first in firsts:
            start, bridge = (first.subject, first.answer) if hop.given == "subject" else (first.answer, first.subject)
            second = about.get((hop.second, bridge))
            if second is None or second.split != first.split:
                continue
            if hop.given == "answer" and (times[start] > 1 or start in SHARED_PEAKS):
                continue
            if hop.first == "currency" and " " in start:
                continue  # "Danish krone" names its country
            chain = Chain(hop, first, second, start, bridge)
            closed = any(mentions(question, (bridge, *second.answers)) for question in chain.questions)
            if not closed and chain.first_statements() and chain.second_statements():
                found.append(chain)
    return tuple(found)


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
