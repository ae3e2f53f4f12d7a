"""The atlas of real facts: `atlas` asks for one fact, `atlas:hops` for two that share a bridge.

`tables/atlas/*.tsv` holds the facts, `tables/atlas-relations.toml` how they are stated and asked for. Everything that a
two-hop question can connect belongs to one group: a book and its author, an element and the person or country it is named
after. A group is in exactly one split, so no fact of the test split occurs in training.

The questions of a split are fixed. `seed` changes distractors, the wording of passages and their order.
"""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from zlib import crc32

from floatlens.data.read import NamedData, register_reader
from floatlens.data.sample import Passage, Sample, insert_at, normalise
from floatlens.errors import FloatLensError, unknown_name

Row = dict[str, tuple[str, ...]]

SPLITS = ("train", "validation", "test")
SHARES = (*["train"] * 7, "validation", "test", "test")
PRONOUNS = {"he": "his", "she": "her"}
PARTICLES = {"van", "von", "de", "da", "del", "le", "la"}
SHARED_PEAKS = {"Mont Blanc", "Mount Everest"}  # each is the highest mountain of two countries
SAME = 0.8  # share of distractors that state the question's relation about another subject
TRIES = 60  # draws per distractor before giving up

_TABLES = files("floatlens.data").joinpath("tables")
_RELATIONS = tomllib.loads(_TABLES.joinpath("atlas-relations.toml").read_text("utf-8"))
RELATIONS = {
    row["name"]: SimpleNamespace(**{"subject": "name", "person": False} | row) for row in _RELATIONS["relation"]
}
GROUP = _RELATIONS["group"]
HOPS = [SimpleNamespace(**{"given": "subject"} | row) for row in _RELATIONS["hop"]]


@dataclass(frozen=True)
class Question:
    """A question about one fact, or about a chain of two facts."""

    kind: str
    relation: str
    subject: str  # what the question names
    answers: tuple[str, ...]  # the first is used in the passages; all are accepted
    split: str
    questions: list[str]  # all phrasings
    evidence: list[tuple[str, list[str]]]  # title and possible texts of each gold passage
    words: dict[str, str]  # the words that a template can use about the row of the (first) fact
    bridge: str = ""  # what connects the two facts of a chain

    @property
    def id(self) -> str:
        return slug(f"{self.relation.replace(' of ', '-')}-{self.subject}")


def fill(template: str, words: dict[str, str]) -> str:
    """Fill a template and begin each of its sentences with a capital letter."""
    sentences = [capitalise(part.format(**words)) for part in re.split(r"(?<=\.) ", template)]
    return " ".join(sentences).replace("..", ".")


def fill_all(templates: Iterable[str], words: dict[str, str]) -> list[str]:
    """Fill the templates whose words are all known."""
    filled = []
    for template in templates:
        with suppress(KeyError):
            filled.append(fill(template, words))
    return filled


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
def table(name: str) -> tuple[Row, ...]:
    """Rows of a table, one per subject; every filled cell is the written form followed by accepted variants.

    `-` marks an empty cell. `A/B` is written as A, and B is accepted as an answer too.
    """
    text = _TABLES.joinpath("atlas", f"{name}.tsv").read_text("utf-8")
    head, *lines = (line.split("\t") for line in text.splitlines())
    return tuple(
        {column: tuple(cell.split("/")) for column, cell in zip(head, line, strict=True) if cell != "-"}
        for line in lines
    )


@cache
def facts() -> tuple[Question, ...]:
    """All facts, in the order of the relations and the tables."""
    return tuple(
        _fact(relation, row)
        for relation in RELATIONS.values()
        for row in table(relation.table)
        if relation.column in row and relation.subject in row
    )


def _fact(relation: SimpleNamespace, row: Row) -> Question:
    words = words_of(row)
    subject, answers = words[relation.subject], accepted(row[relation.column], relation.person)
    words |= {"s": subject, "o": answers[0], "a_o": with_article(answers[0])}
    group = words.get(GROUP.get(relation.table, "group"), words["name"])
    split = SHARES[crc32(f"atlas {group}".encode()) % len(SHARES)]
    title = capitalise(answers[0] if relation.column == "name" else subject)  # what the row is about
    evidence = [(title, fill_all(relation.statements, words))]
    questions = fill_all(relation.questions, words)
    return Question("facts", relation.name, subject, answers, split, questions, evidence, words)


@cache
def chains() -> tuple[Question, ...]:
    """All chains whose question has one answer and does not give away the bridge or the end."""
    known = {(fact.relation, fact.subject): fact for fact in facts()}
    kept = []
    for hop in HOPS:
        firsts = [fact for fact in facts() if fact.relation == hop.first]
        times = Counter(fact.answers[0] for fact in firsts)
        for first in firsts:
            start, bridge = first.subject, first.answers[0]
            if hop.given == "answer":
                start, bridge = bridge, start
                if times[start] > 1 or start in SHARED_PEAKS:
                    continue
            second = known.get((hop.second, bridge))
            if second is None or second.split != first.split:
                continue
            if hop.first == "currency" and " " in start:
                continue  # "Danish krone" names its country
            chain = _chain(hop, first, second, start, bridge)
            closed = any(mentions(question, (bridge, *chain.answers)) for question in chain.questions)
            if not closed and all(texts for _, texts in chain.evidence):
                kept.append(chain)
    return tuple(kept)


def _chain(hop: SimpleNamespace, first: Question, second: Question, start: str, bridge: str) -> Question:
    """A question that needs two facts; neither gold passage answers it alone."""
    words = first.words | {"s": start}
    questions = [capitalise(question.format(**words)) for question in hop.questions]
    evidence = []
    for fact, hidden in ((first, second.answers), (second, (start,))):
        [(title, texts)] = fact.evidence
        evidence.append((title, [text for text in texts if not mentions(text, hidden)]))
    relation = f"{hop.first} of {hop.second}"
    return Question("hops", relation, start, second.answers, first.split, questions, evidence, words, bridge)


@cache
def padded(text: str) -> str:
    """Return the normalised text with a space at each end."""
    return f" {normalise(text)} "


def mentions(text: str, answers: Iterable[str]) -> bool:
    """Return whether any of the answers occurs in the text as whole words."""
    return any(padded(answer) in padded(text) for answer in answers)


def samples(
    name: str = "atlas",
    split: str | None = None,
    limit: int | None = None,
    *,
    passages: int | None = None,
    gold_at: int | None = None,
    seed: int | None = None,
) -> Iterator[Sample]:
    """Yield the samples of a split, in a fixed mixed order: 5 passages each by default, the gold one anywhere.

    >>> sample = next(samples("atlas", passages=3, gold_at=1))
    >>> len(sample.passages), sample.gold, sample.answers[0] in sample.passages[1].text
    (3, [1], True)
    """
    split = split or "test"
    if split not in SPLITS:
        raise unknown_name("split of the atlas", split, SPLITS)
    if passages is not None and passages < 0:
        raise FloatLensError(f"passages must be 0 or more, got {passages}; use 0 for closed book")
    for item in questions(name, split)[:limit]:
        yield make(item, 5 if passages is None else passages, gold_at, seed or 0)


@cache
def questions(name: str, split: str) -> tuple[Question, ...]:
    """The facts or chains of a split, in a fixed shuffled order."""
    items = chains() if name == "atlas:hops" else facts()
    return tuple(sorted((item for item in items if item.split == split), key=lambda item: number(item.id)))


def number(key: str) -> int:
    """A hash of the key that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def make(item: Question, passages: int, gold_at: int | None, seed: int, phrasing: int = 0) -> Sample:
    """One question, in one of its wordings, with its gold passages among `passages` passages."""
    draw = random.Random(f"{seed} {item.id}")
    evidence = [Passage(draw.choice(texts), title, gold=True) for title, texts in item.evidence]
    gold, others = evidence[:passages], distractors(item, max(0, passages - len(evidence)), draw)
    every = [*gold, *others]
    return Sample(
        id=item.id,
        question=item.questions[(number(item.id) + phrasing) % len(item.questions)],
        answers=list(item.answers),
        passages=draw.sample(every, len(every)) if gold_at is None else insert_at(gold_at, gold, others),
        meta={"kind": item.kind, "relation": item.relation, "subject": item.subject, "split": item.split},
    )


def distractors(item: Question, count: int, draw: random.Random) -> list[Passage]:
    """Passages of the same split about other things, mostly in the same relation, none with a gold answer."""
    relations = item.relation.split(" of ")
    pools: list[Sequence[Question]] = [
        [other for relation in relations for other in pool(item.split, relation=relation)],
        pool(item.split, table=RELATIONS[relations[0]].table),
        pool(item.split),
    ]
    titles = {title for title, _ in item.evidence}
    banned = (*item.answers, item.subject, item.bridge) if item.bridge else item.answers
    chosen: list[Passage] = []
    for attempt in range(TRIES * count):
        level = (draw.random() >= SAME) + len(pools) * attempt // (TRIES * count)  # widen the pool after many tries
        [(title, texts)] = draw.choice(pools[min(level, len(pools) - 1)]).evidence
        text = draw.choice(texts)
        if title not in titles and not mentions(f"{title} {text}", banned):
            titles.add(title)
            chosen.append(Passage(text, title))
            if len(chosen) == count:
                return chosen
    if len(chosen) < count:
        raise FloatLensError(
            f"the {item.split} split of the atlas has {len(chosen)} distractors for {item.id!r}, not {count}; "
            "ask for fewer passages"
        )
    return chosen


@cache
def pool(split: str, *, relation: str = "", table: str = "") -> tuple[Question, ...]:
    """Facts of a split, optionally of one relation or one table only."""
    return tuple(
        fact
        for fact in facts()
        if fact.split == split and relation in ("", fact.relation) and table in ("", RELATIONS[fact.relation].table)
    )


register_reader(NamedData("atlas", ["atlas", "atlas:hops"], samples))
