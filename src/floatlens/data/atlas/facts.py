"""Facts of the atlas: subject, relation, answers and split.

Everything that a two-hop question can connect belongs to one group: a book and its author, an element and the person or
country it is named after. A group is in exactly one split, so no fact of the test split occurs in training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from string import Formatter
from zlib import crc32

from floatlens.data.atlas import nature, people, places, science, works

RELATIONS = {
    relation.name: relation for part in (places, people, works, science, nature) for relation in part.RELATIONS
}
HOPS = (*places.HOPS, *works.HOPS, *science.HOPS)
Row = dict[str, tuple[str, ...]]

SPLITS = ("train", "validation", "test")
SHARES = (*["train"] * 7, "validation", "test", "test")
GROUP = {  # the column that names a row's group; a row without one is its own group
    "books": "author",
    "artworks": "artist",
    "music": "composer",
    "firsts": "person",
    "units": "namesake",
    "cities": "country",
    "landmarks": "country",
    "sites": "country",
}
PRONOUNS = {"he": "his", "she": "her"}
PARTICLES = {"van", "von", "de", "da", "del", "le", "la"}


@dataclass(frozen=True)
class AtlasFact:
    """One fact. `answers[0]` is used in the passages; all answers are accepted."""

    relation: str
    subject: str
    answers: tuple[str, ...]
    group: str
    words: tuple[tuple[str, str], ...]

    @property
    def answer(self) -> str:
        return self.answers[0]

    @cached_property
    def split(self) -> str:
        return split_of(self.group)

    @cached_property
    def title(self) -> str:
        """Title of the passages about the fact: its subject, or its answer if the row is about the answer.

        >>> fact("capital", "the Gambia").title
        'The Gambia'
        """
        return capitalise(self.answer if RELATIONS[self.relation].column == "name" else self.subject)

    @cached_property
    def statements(self) -> list[str]:
        """All passages that state the fact.

        >>> fact("capital", "Poland").statements[0]
        'Poland is a country in Europe, and its capital is Warsaw. It was the home of Copernicus and of Chopin.'
        """
        return self._filled(RELATIONS[self.relation].statements)

    @cached_property
    def questions(self) -> list[str]:
        """All phrasings of the question.

        >>> fact("capital", "Poland").questions[0]
        'What is the capital of Poland?'
        """
        return self._filled(RELATIONS[self.relation].questions)

    def _filled(self, templates: tuple[str, ...]) -> list[str]:
        words = dict(self.words)
        return [fill(template, words) for template in templates if fields(template) <= words.keys()]


@cache
def fields(template: str) -> set[str]:
    """Names in braces of a template."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def fill(template: str, words: dict[str, str]) -> str:
    """Fill a template and begin each of its sentences with a capital letter.

    >>> fill("{s} is wet. It rains in {s}.", {"s": "the Gambia"})
    'The Gambia is wet. It rains in the Gambia.'
    """
    sentences = [capitalise(part.format(**words)) for part in re.split(r"(?<=\.) ", template)]
    return " ".join(sentences).replace("..", ".")


def capitalise(text: str) -> str:
    """Text with a capital first letter; the rest stays."""
    return text[:1].upper() + text[1:]


def with_article(phrase: str) -> str:
    """Return the phrase with the indefinite article.

    >>> with_article("English novel"), with_article("unit"), with_article("hour")
    ('an English novel', 'a unit', 'an hour')
    """
    vowel = re.match(r"[aeiou]|hour|honest|X-", phrase, re.IGNORECASE)
    spoken_as_consonant = re.match(r"uni|eu|one|ukr|uru", phrase, re.IGNORECASE)
    return f"{'an' if vowel and not spoken_as_consonant else 'a'} {phrase}"


def split_of(group: str) -> str:
    """The split of a group, by its name: seven tenths train, one tenth validation, two tenths test."""
    return SHARES[crc32(f"atlas {group}".encode()) % len(SHARES)]


def family_name(person: str) -> str:
    """Last name with its particles.

    >>> family_name("Ludwig van Beethoven"), family_name("Homer")
    ('van Beethoven', 'Homer')
    """
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
    found = []
    for relation in RELATIONS.values():
        for row in table(relation.category):
            if relation.column not in row or relation.subject not in row:
                continue
            words = words_of(row)
            subject, answers = words[relation.subject], accepted(row[relation.column], relation.person)
            group = words.get(GROUP.get(relation.category, "group"), words["name"])
            known = tuple((words | {"s": subject, "o": answers[0], "a_o": with_article(answers[0])}).items())
            found.append(AtlasFact(relation.name, subject, answers, group, known))
    return tuple(found)


@cache
def _index() -> dict[tuple[str, str], AtlasFact]:
    return {(fact.relation, fact.subject): fact for fact in facts()}


def fact(relation: str, subject: str) -> AtlasFact:
    """The fact about a subject."""
    return _index()[relation, subject]


@cache
def table(category: str) -> tuple[Row, ...]:
    """Rows of `tables/CATEGORY.tsv`, one per subject; every filled cell is the written form followed by accepted variants.

    `-` marks an empty cell. `A/B` is written as A, and B is accepted as an answer too.

    >>> table("countries")[0]["capital"]
    ('Paris',)
    """
    text = files(__package__).joinpath("tables", f"{category}.tsv").read_text("utf-8")
    head, *lines = (line.split("\t") for line in text.splitlines())
    return tuple(
        {column: tuple(cell.split("/")) for column, cell in zip(head, line, strict=True) if cell != "-"}
        for line in lines
    )
