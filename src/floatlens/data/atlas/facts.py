"""Facts of the atlas: subject, relation, answers and split; and chains of two facts that share a bridge.

`tables/*.tsv` holds the facts, `relations.toml` how they are stated and asked for. Everything that a two-hop question can
connect belongs to one group: a book and its author, an element and the person or country it is named after. A group is in
exactly one split, so no fact of the test split occurs in training.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from string import Formatter
from types import SimpleNamespace
from typing import ClassVar
from zlib import crc32

from floatlens.data.sample import normalise

Row = dict[str, tuple[str, ...]]

SPLITS = ("train", "validation", "test")
SHARES = (*["train"] * 7, "validation", "test", "test")
PRONOUNS = {"he": "his", "she": "her"}
PARTICLES = {"van", "von", "de", "da", "del", "le", "la"}
SHARED_PEAKS = {"Mont Blanc", "Mount Everest"}  # each is the highest mountain of two countries


_TABLES = tomllib.loads(files(__package__).joinpath("relations.toml").read_text("utf-8"))
RELATIONS = {row["name"]: SimpleNamespace(**{"subject": "name", "person": False} | row) for row in _TABLES["relation"]}
GROUP = _TABLES["group"]
HOPS = [SimpleNamespace(**{"given": "subject"} | row) for row in _TABLES["hop"]]


@dataclass(frozen=True)
class AtlasFact:
    """One fact. `answers[0]` is used in the passages; all answers are accepted."""

    relation: str
    subject: str
    answers: tuple[str, ...]
    group: str
    words: tuple[tuple[str, str], ...]

    kind: ClassVar[str] = "facts"

    @property
    def answer(self) -> str:
        return self.answers[0]

    @property
    def id(self) -> str:
        return slug(f"{self.relation}-{self.subject}")

    @property
    def facts(self) -> tuple[AtlasFact, ...]:
        """The facts that the question needs."""
        return (self,)

    @property
    def banned(self) -> tuple[str, ...]:
        """Words that no distractor may mention."""
        return self.answers

    @cached_property
    def split(self) -> str:
        return split_of(self.group)

    @cached_property
    def title(self) -> str:
        """Title of the passages about the fact: its subject, or its answer if the row is about the answer."""
        return capitalise(self.answer if RELATIONS[self.relation].column == "name" else self.subject)

    @cached_property
    def statements(self) -> list[str]:
        """All passages that state the fact."""
        return self._filled(RELATIONS[self.relation].statements)

    @cached_property
    def questions(self) -> list[str]:
        """All phrasings of the question."""
        return self._filled(RELATIONS[self.relation].questions)

    @property
    def evidence(self) -> list[tuple[str, list[str]]]:
        """Title and possible texts of each gold passage."""
        return [(self.title, self.statements)]

    def _filled(self, templates: list[str]) -> list[str]:
        words = dict(self.words)
        return [fill(template, words) for template in templates if fields(template) <= words.keys()]


@cache
def fields(template: str) -> set[str]:
    """Names in braces of a template."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def fill(template: str, words: dict[str, str]) -> str:
    """Fill a template and begin each of its sentences with a capital letter."""
    sentences = [capitalise(part.format(**words)) for part in re.split(r"(?<=\.) ", template)]
    return " ".join(sentences).replace("..", ".")


def capitalise(text: str) -> str:
    """Text with a capital first letter; the rest stays."""
    return text[:1].upper() + text[1:]


def with_article(phrase: str) -> str:
    """Return the phrase with the indefinite article."""
    vowel = re.match(r"[aeiou]|hour|honest|X-", phrase, re.IGNORECASE)
    spoken_as_consonant = re.match(r"uni|eu|one|ukr|uru", phrase, re.IGNORECASE)
    return f"{'an' if vowel and not spoken_as_consonant else 'a'} {phrase}"


def slug(text: str) -> str:
    """Letters, digits and hyphens: a stable name in ASCII."""
    flat = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", flat.lower()).strip("-")


def split_of(group: str) -> str:
    """The split of a group, by its name: seven tenths train, one tenth validation, two tenths test."""
    return SHARES[crc32(f"atlas {group}".encode()) % len(SHARES)]


def family_name(person: str) -> str:
    """Last name with its particles."""
    names = person.split(" ")
    start = len(names) - 1
    while start > 1 and names[start - 1] in PARTICLES:
        start -= 1
    return " ".join(names[start:])


def accepted(answers: tuple[str, ...], person: bool) -> tuple[str, ...]:
    """All accepted answers; for a person without listed variants, also the family name."""
    if not person or len(answers) > 1:
        return answers
    name = answers[0]
    return tuple(dict.fromkeys((name, family_name(name), name.split(" ")[-1])))


def words_of(row: Row) -> dict[str, str]:
    """The words that a template can use about a row."""
    words = {column: cell[0] for column, cell in row.items()}
    words |= {f"a_{column}": with_article(word) for column, word in words.items()}
    if pronoun := words.get("pronoun"):
        possessive = PRONOUNS[pronoun]
        words |= {"he": pronoun, "He": pronoun.title(), "his": possessive, "His": possessive.title()}
    return words


@cache
def facts() -> tuple[AtlasFact, ...]:
    """All facts, in the order of the relations and the tables."""
    every = []
    for relation in RELATIONS.values():
        for row in table(relation.table):
            if relation.column not in row or relation.subject not in row:
                continue
            words = words_of(row)
            subject, answers = words[relation.subject], accepted(row[relation.column], relation.person)
            group = words.get(GROUP.get(relation.table, "group"), words["name"])
            known = tuple((words | {"s": subject, "o": answers[0], "a_o": with_article(answers[0])}).items())
            every.append(AtlasFact(relation.name, subject, answers, group, known))
    return tuple(every)


@cache
def _index() -> dict[tuple[str, str], AtlasFact]:
    return {(fact.relation, fact.subject): fact for fact in facts()}


def fact(relation: str, subject: str) -> AtlasFact:
    """The fact about a subject."""
    return _index()[relation, subject]


@cache
def table(name: str) -> tuple[Row, ...]:
    """Rows of `tables/NAME.tsv`, one per subject; every filled cell is the written form followed by accepted variants.

    `-` marks an empty cell. `A/B` is written as A, and B is accepted as an answer too.
    """
    text = files(__package__).joinpath("tables", f"{name}.tsv").read_text("utf-8")
    head, *lines = (line.split("\t") for line in text.splitlines())
    return tuple(
        {column: tuple(cell.split("/")) for column, cell in zip(head, line, strict=True) if cell != "-"}
        for line in lines
    )


@dataclass(frozen=True)
class Chain:
    """A question that needs two facts; `start` is named in the question, `bridge` connects the facts."""

    kind: ClassVar[str] = "hops"

    hop: SimpleNamespace
    first: AtlasFact
    second: AtlasFact
    start: str
    bridge: str

    @property
    def id(self) -> str:
        return slug(f"{self.hop.first}-{self.hop.second}-{self.start}")

    @property
    def split(self) -> str:
        return self.first.split

    @property
    def subject(self) -> str:
        return self.start

    @property
    def answers(self) -> tuple[str, ...]:
        return self.second.answers

    @property
    def facts(self) -> tuple[AtlasFact, ...]:
        return self.first, self.second

    @property
    def banned(self) -> tuple[str, ...]:
        return *self.answers, self.start, self.bridge

    @property
    def relation(self) -> str:
        """Both relations, as in `currency of capital`."""
        return f"{self.hop.first} of {self.hop.second}"

    @property
    def evidence(self) -> list[tuple[str, list[str]]]:
        """Title and texts of both gold passages, neither of which answers the question alone."""
        first = [text for text in self.first.statements if not mentions(text, self.answers)]
        second = [text for text in self.second.statements if not mentions(text, (self.start,))]
        return [(self.first.title, first), (self.second.title, second)]

    @property
    def questions(self) -> list[str]:
        """All phrasings of the question."""
        words = dict(self.first.words) | {"s": self.start}
        return [capitalise(question.format(**words)) for question in self.hop.questions]


@cache
def chains() -> tuple[Chain, ...]:
    """All chains whose question has one answer and does not give away the bridge or the end."""
    kept = []
    for hop in HOPS:
        firsts = [fact for fact in facts() if fact.relation == hop.first]
        times = Counter(fact.answer for fact in firsts)
        for first in firsts:
            start, bridge = (first.subject, first.answer) if hop.given == "subject" else (first.answer, first.subject)
            second = _index().get((hop.second, bridge))
            if second is None or second.split != first.split:
                continue
            if hop.given == "answer" and (times[start] > 1 or start in SHARED_PEAKS):
                continue
            if hop.first == "currency" and " " in start:
                continue  # "Danish krone" names its country
            chain = Chain(hop, first, second, start, bridge)
            closed = any(mentions(question, (bridge, *second.answers)) for question in chain.questions)
            if not closed and all(texts for _, texts in chain.evidence):
                kept.append(chain)
    return tuple(kept)


@cache
def padded(text: str) -> str:
    """Return the normalised text with a space at each end."""
    return f" {normalise(text)} "


def mentions(text: str, answers: Iterable[str]) -> bool:
    """Return whether any of the answers occurs in the text as whole words."""
    whole = padded(text)
    return any(padded(answer) in whole for answer in answers)
