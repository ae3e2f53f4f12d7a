"""The synthetic world: `world:common`, `world:fresh` and so on, or `world` for all of them.

Its words and relations are in `tables/world-words.toml` and `tables/world-relations.toml`. *Common* people recur in training
with facts that never change, so a model can memorise them. *Fresh* entities are pairs of name words; each pair belongs to
exactly one split, and its facts are drawn again for every question, so only the passages have the answer. Every name word is
one token of the bundled models' tokenizer, so that a question about copying is a question about attention and not about
spelling. Most distractors state the same relation about someone else, so only the name distinguishes the passages.

The data sets mirror those of the paper. The questions of a split are fixed; `seed` changes only the distractors, the wording
and the order of the passages.
"""

import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from zlib import crc32

from floatlens.data.read import NamedData, register_reader
from floatlens.data.sample import Passage, Sample, insert_at
from floatlens.errors import unknown_name

SEED = 2601
SIZES = {"train": 2000, "validation": 400, "test": 1000}  # questions per split
NAMES = ("common", "fresh", "long", "hops", "slots", "needle")
COMMON_SPLIT = ("test", "validation", "train", "train", "train")
LIFE = ("birthplace", "birth_year", "trade", "employer")  # the facts of a person, in the order of a long answer
SINGLE = ("birthplace", "birth_year", "trade", "employer", "seat", "founder", "builder", "launch", "maker")
SAME = 0.8  # share of distractors that state the question's own relation
ASIDES = ("The winter was long.", "Few people knew.", "The letters were lost.", "It is told to this day.")
ABOUT = ("What is known about {s}?", "Who was {s}?")

_TABLES = files("floatlens.data").joinpath("tables")
_WORDS = tomllib.loads(_TABLES.joinpath("world-words.toml").read_text("utf-8"))
_RELATIONS = tomllib.loads(_TABLES.joinpath("world-relations.toml").read_text("utf-8"))
RELATIONS = {row["name"]: SimpleNamespace(**row) for row in _RELATIONS["relation"]}
HOPS = [SimpleNamespace(**row) for row in _RELATIONS["hop"]]
WORDS: dict[str, list[str]] = {kind: words.split() for kind, words in _WORDS.items() if kind != "names"}
WORDS |= {"years": [str(year) for year in range(1801, 1921)], "days": [str(day) for day in range(1, 29)]}
PLAIN = ("trades", "colours", "animals", "instrument_kinds", "passwords", "months", "firm_kinds")


@cache
def names() -> dict[str, tuple[str, ...]]:
    """Return the invented name words by kind; no word has two kinds."""
    draw = random.Random(f"words {SEED}")
    taken = {word.lower() for kind in PLAIN for word in WORDS[kind]}
    made: dict[str, tuple[str, ...]] = {}
    for kind, sound in _WORDS["names"].items():
        words: list[str] = []
        while len(words) < sound["count"]:
            syllables = range(draw.choice((1, 1, 2)))
            stem = "".join(draw.choice(WORDS["onsets"]) + draw.choice(WORDS["vowels"]) for _ in syllables)
            ending = draw.choice(sound["endings"].split())
            word = stem + (draw.choice(WORDS["links"]) if ending[0] in "aeiou" else "") + ending
            if word not in taken and 4 <= len(word) <= 10:
                taken.add(word)
                words.append(word.capitalize())
        made[kind] = tuple(words)
    return made


@dataclass(frozen=True)
class Fact:
    """A relation between a subject and an object, in the form used in texts."""

    subject: str
    relation: str
    object: str

    def tell(self, draw: random.Random | None) -> str:
        """Return a sentence that states the fact; without `draw` always the same one."""
        statements = RELATIONS[self.relation].statements
        return (draw.choice(statements) if draw else statements[0]).format(s=self.subject, o=self.object)

    def ask(self, draw: random.Random) -> str:
        """Return a question whose answer is the object."""
        return draw.choice(RELATIONS[self.relation].questions).format(s=self.subject)

    def slot(self) -> str:
        """Return the question as slot filling."""
        return f"{self.subject} [SEP] {RELATIONS[self.relation].slot}"


def split_of(name: str) -> str:
    """Return the split of a fresh entity, by its name: 80 % train, 10 % each of the others."""
    return (*["train"] * 8, "validation", "test")[crc32(f"{SEED} {name}".encode()) % 10]


def pairs(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first and second words of the fresh entities of a kind; every combination is a name."""
    return {
        "person": (names()["given"], names()["surname"]),
        "firm": (names()["firm"], tuple(WORDS["firm_kinds"])),
        "ship": (tuple(WORDS["colours"]), tuple(WORDS["animals"])),
        "instrument": (names()["tune"], tuple(WORDS["instrument_kinds"])),
    }[kind]


def entity(kind: str, draw: random.Random, split: str) -> str:
    """Return an entity, a plain word, a year or a date. Fresh entities are of the split; towns and rivers of all splits."""
    if kind == "date":
        return " ".join(draw.choice(WORDS[part]) for part in ("days", "months", "years"))
    if words := names().get(kind) if kind in ("town", "river") else WORDS.get(f"{kind}s"):
        return draw.choice(words)
    firsts, seconds = pairs(kind)
    while split_of(name := f"{draw.choice(firsts)} {draw.choice(seconds)}") != split:
        pass
    return name


def fresh_fact(relation: str, draw: random.Random, split: str, subject: str = "") -> Fact:
    """Draw a new fact, about `subject` or about a fresh entity of the split."""
    kinds = RELATIONS[relation]
    subject = subject or entity(kinds.subject, draw, split)
    return Fact(subject, relation, entity(kinds.object, draw, split))


def life(subject: str, draw: random.Random, split: str) -> list[Fact]:
    """Return the four facts of a person's life, in the order of the text."""
    return [fresh_fact(relation, draw, split, subject) for relation in LIFE]


@cache
def common_people() -> dict[str, list[Fact]]:
    """Return the people who recur in training, each with the unchanging facts of a life."""
    draw = random.Random(f"common {SEED}")
    people = {}
    for surname in names()["common_surname"]:
        name = f"{draw.choice(names()['given'])} {surname}"
        people[name] = life(name, draw, "train")
    return people


@cache
def common_names(split: str) -> tuple[str, ...]:
    """Return the common people whose questions make up a split. All of them occur in training."""
    return tuple(name for i, name in enumerate(common_people()) if COMMON_SPLIT[i % 5] == split)


def key_word(name: str) -> str:
    """Return the word by which entities of one context differ: surname, name of the company, animal, tune."""
    first, _, second = name.partition(" ")
    return first if not second or second in (*WORDS["firm_kinds"], *WORDS["instrument_kinds"]) else second


def distinct(relation: str, draw: random.Random, split: str, taken: set[str], common: bool = False) -> Fact:
    """Return a fact whose subject shares its key word with no other subject of the context."""
    while True:
        if common and relation in LIFE and draw.random() < 0.7:
            fact = common_people()[draw.choice(list(common_people()))][LIFE.index(relation)]
        else:
            fact = fresh_fact(relation, draw, split)
        if key_word(fact.subject) not in taken:
            taken.add(key_word(fact.subject))
            return fact


def single(
    target: Fact,
    n: int,
    draw: random.Random,
    split: str,
    *,
    same: float = SAME,
    common: bool = False,
    relations: tuple[str, ...] = SINGLE,
) -> list[Fact]:
    """Return a fact and n − 1 distractors."""
    taken = {key_word(target.subject)}
    facts = [target]
    while len(facts) < n:
        if draw.random() < same:
            facts.append(distinct(target.relation, draw, split, taken, common))
        elif not common and target.relation in LIFE and target.relation in relations and draw.random() < 0.4:
            # another fact of the same subject: the name alone is not enough
            other = fresh_fact(draw.choice([r for r in LIFE if r != target.relation]), draw, split, target.subject)
            if (other.subject, other.relation) not in {(f.subject, f.relation) for f in facts}:
                facts.append(other)
        else:
            facts.append(distinct(draw.choice(relations), draw, split, taken, common))
    return facts


def chain(hop: SimpleNamespace, draw: random.Random, split: str, taken: set[str]) -> tuple[Fact, Fact]:
    """Return two facts with new subjects; the object of the first is the subject of the second."""
    while True:
        first = distinct(hop.first, draw, split, taken)
        if key_word(first.object) not in taken:
            taken.add(key_word(first.object))
            return first, fresh_fact(hop.second, draw, split, first.object)


def hops(hop: SimpleNamespace, target: tuple[Fact, Fact], n: int, draw: random.Random, split: str) -> list[Fact]:
    """Return the facts of a chain and of others of the same kind, n facts in all."""
    taken = {key_word(target[0].subject), key_word(target[0].object)}
    facts = [*target]
    while len(facts) < n:
        more = chain(hop, draw, split, taken)
        facts += more if len(facts) + 2 <= n else [draw.choice(more)]
    return facts


def long(facts: list[Fact], n: int, draw: random.Random, split: str) -> list[list[Fact]]:
    """Return the facts of a person's life in two groups (in one if n is 1), and groups about other people."""
    groups = [facts] if n == 1 else [facts[:2], facts[2:]]
    taken = {key_word(facts[0].subject)}
    while len(groups) < n:
        birth = distinct("birthplace", draw, split, taken)
        other = [birth, *life(birth.subject, draw, split)[1:]]
        groups += [other[:2], other[2:]]
    return groups


def needle(target: Fact, n: int, draw: random.Random, split: str) -> list[Fact]:
    """Return a fact about a secret word in a haystack of facts about other things."""
    taken = {key_word(target.subject)}
    return [target] + [distinct(draw.choice(SINGLE), draw, split, taken) for _ in range(n - 1)]


def account(facts: list[Fact]) -> str:
    """Return the long answer: every fact in its plain sentence."""
    return " ".join(fact.tell(None) for fact in facts)


def write(groups: list[list[Fact]], gold: int, draw: random.Random, gold_at: int | None = None) -> list[Passage]:
    """Write each group of facts as a passage, and order the passages: the first `gold` groups together at `gold_at`."""
    gold = min(gold, len(groups))
    written = [_passage(group, index < gold, draw) for index, group in enumerate(groups)]
    if gold_at is None:
        return draw.sample(written, len(written))
    return insert_at(gold_at, written[:gold], draw.sample(written[gold:], len(written) - gold))


def _passage(facts: list[Fact], gold: bool, draw: random.Random) -> Passage:
    """Return a passage that states the facts, sometimes with a title, sometimes with an irrelevant sentence."""
    text = facts[0].tell(draw) if len(facts) == 1 else account(facts)
    listed = "\n" in text
    if not listed and draw.random() < 0.15:
        text = f"{text} {draw.choice(ASIDES)}" if draw.random() < 0.5 else f"{draw.choice(ASIDES)} {text}"
    return Passage(text, facts[0].subject if not listed and draw.random() < 0.1 else "", gold)


def make(
    name: str, fixed: random.Random, draw: random.Random, split: str, n: int
) -> tuple[str, str, str, str, list[list[Fact]], int]:
    """Return subject, relation, question, answer, the facts of each passage, and how many of these come first as gold.

    `fixed` draws the question, `draw` the rest. common asks for a fact about people who recur in training, fresh about
    entities that never do, slots the same as NAME [SEP] relation, long for all that is known about a person (24 to 32
    tokens), hops for two facts that form a chain (the bridge and the end), needle for a secret word in many passages.
    """
    if name == "long":
        facts = life(entity("person", fixed, split), fixed, split)
        groups = long(facts, n, draw, split)
        return facts[0].subject, "life", draw.choice(ABOUT).format(s=facts[0].subject), account(facts), groups, 2
    if name == "hops":
        hop = fixed.choice(HOPS)
        first, second = chain(hop, fixed, split, set())
        groups = [[fact] for fact in hops(hop, (first, second), n, draw, split)]
        question = draw.choice(hop.questions).format(s=first.subject)
        return first.subject, f"{hop.first} of {hop.second}", question, f"{first.object}, {second.object}", groups, 2
    if name == "needle":
        target = fresh_fact("password", fixed, split)
        facts = needle(target, n, draw, split)
        question = target.ask(draw)
    else:
        if name == "common":
            target = fixed.choice(common_people()[fixed.choice(common_names(split))])
        else:
            target = fresh_fact(fixed.choice(SINGLE), fixed, split)
        question = target.slot() if name == "slots" else target.ask(fixed)
        facts = single(target, n, draw, split, common=name == "common")
        if name != "slots":
            target.ask(draw)  # not used; the passages of published results were drawn after it
    return target.subject, target.relation, question, target.object, [[fact] for fact in facts], 1


def samples(
    name: str,
    split: str | None = None,
    limit: int | None = None,
    *,
    passages: int | None = None,
    gold_at: int | None = None,
    seed: int | None = None,
) -> Iterator[Sample]:
    """Yield the questions of a data set, with the gold passage among `passages` passages (0: closed book).

    Parameters
    ----------
    name: one of `NAMES`, with or without `world:` before it.
    passages: number of passages; 5 by default, and 20 for the needle.
    gold_at: index of the (first) gold passage; by default it varies.

    >>> sample = next(samples("fresh", passages=3, gold_at=0))
    >>> sample.gold, sample.answers[0] in sample.passages[0].text
    ([0], True)
    """
    name, split = name.removeprefix("world:"), split or "test"
    if split not in SIZES:
        raise unknown_name("split of the world", split, SIZES)
    if passages is None:
        passages = 20 if name == "needle" else 5
    size = SIZES[split] if name != "common" else len(LIFE) * len(common_names(split))
    seen: set[tuple[str, str]] = set()
    tries = 0
    while len(seen) < min(size, size if limit is None else limit):
        fixed = random.Random(f"{SEED} {name} {split} {tries}")
        draw = random.Random(f"{seed or 0} {name} {split} {tries}")
        tries += 1
        subject, relation, question, answer, groups, gold = make(name, fixed, draw, split, passages)
        if (subject, relation) in seen:
            continue
        yield Sample(
            id=f"{name}-{split}-{len(seen)}",
            question=question,
            answers=[answer],
            passages=write(groups[:passages], gold, draw, gold_at),
            meta={"kind": name, "relation": relation, "subject": subject},
        )
        seen.add((subject, relation))


register_reader(NamedData("world", [f"world:{name}" for name in NAMES], samples))
