"""Facts: the words, entities and relations of the synthetic world, from `words.toml` and `relations.toml`.

There are two kinds of entities. *Common* people recur in training with facts that never change, so a model can memorise
them. *Fresh* entities are pairs of name words; each pair belongs to exactly one split, and its facts are drawn again for
every context, so only the context has the answer. Every name word is one token of the bundled models' tokenizer, so that a
question about copying is a question about attention and not about spelling.
"""

import random
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any
from zlib import crc32

SEED = 2601
SPLITS = ("train", "validation", "test")
COMMON_SPLIT = ("test", "validation", "train", "train", "train")
LIFE = ("birthplace", "birth_year", "trade", "employer")  # the facts of a person, in the order of a long answer


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))


WORDS = _table("words.toml")
TRADES, FIRM_KINDS, COLOURS, ANIMALS, INSTRUMENT_KINDS, PASSWORDS, MONTHS = (
    WORDS[kind].split()
    for kind in ("trades", "firm_kinds", "colours", "animals", "instrument_kinds", "passwords", "months")
)
YEARS = [str(year) for year in range(1801, 1921)]
DAYS = [str(day) for day in range(1, 29)]
_RELATIONS = _table("relations.toml")
RELATIONS = {row["name"]: SimpleNamespace(**row) for row in _RELATIONS["relation"]}
HOPS = [SimpleNamespace(**row) for row in _RELATIONS["hop"]]


@cache
def names() -> dict[str, tuple[str, ...]]:
    """Return the invented name words by kind; no word has two kinds."""
    draw = random.Random(f"words {SEED}")
    onsets, vowels, links = (WORDS[kind].split() for kind in ("onsets", "vowels", "links"))
    plain = [*TRADES, *COLOURS, *ANIMALS, *INSTRUMENT_KINDS, *PASSWORDS, *MONTHS, *FIRM_KINDS]
    taken = {word.lower() for word in plain}
    made: dict[str, tuple[str, ...]] = {}
    for kind, sound in WORDS["names"].items():
        words: list[str] = []
        while len(words) < sound["count"]:
            stem = "".join(draw.choice(onsets) + draw.choice(vowels) for _ in range(draw.choice((1, 1, 2))))
            ending = draw.choice(sound["endings"].split())
            word = stem + (draw.choice(links) if ending[0] in "aeiou" else "") + ending
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

    def tell(self, draw: random.Random, plain: bool = False) -> str:
        """Return a sentence that states the fact; with `plain` always the same one."""
        statements = RELATIONS[self.relation].statements
        return (statements[0] if plain else draw.choice(statements)).format(s=self.subject, o=self.object)

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
        "firm": (names()["firm"], tuple(FIRM_KINDS)),
        "ship": (tuple(COLOURS), tuple(ANIMALS)),
        "instrument": (names()["tune"], tuple(INSTRUMENT_KINDS)),
    }[kind]


def entity(kind: str, draw: random.Random, split: str, width: int = 10**6) -> str:
    """Return a fresh entity of a split; towns are single words, shared by all splits. `width` limits the pool of words."""
    if kind == "town":
        return draw.choice(names()["town"][:width])
    firsts, seconds = pairs(kind)
    while True:
        name = f"{draw.choice(firsts[:width])} {draw.choice(seconds[:width])}"
        if split_of(name) == split:
            return name


def thing(kind: str, draw: random.Random, split: str) -> str:
    """Return an object of a kind: an entity, a plain word, a year or a date."""
    if kind == "date":
        return f"{draw.choice(DAYS)} {draw.choice(MONTHS)} {draw.choice(YEARS)}"
    plain = {"river": names()["river"], "year": YEARS, "trade": TRADES, "password": PASSWORDS}.get(kind)
    return draw.choice(plain) if plain else entity(kind, draw, split)


def fresh_fact(relation: str, draw: random.Random, split: str, subject: str = "") -> Fact:
    """Draw a new fact, about `subject` or about a fresh entity of the split."""
    kinds = RELATIONS[relation]
    subject = subject or entity(kinds.subject, draw, split)
    return Fact(subject, relation, thing(kinds.object, draw, split))


@cache
def common_people() -> dict[str, tuple[Fact, ...]]:
    """Return the people who recur in training, each with the unchanging facts of a life."""
    draw = random.Random(f"common {SEED}")
    given = names()["given"]
    people = {}
    for surname in names()["common_surname"]:
        name = f"{draw.choice(given)} {surname}"
        people[name] = tuple(fresh_fact(relation, draw, "train", name) for relation in LIFE)
    return people


@cache
def common_names(split: str) -> tuple[str, ...]:
    """Return the common people whose questions make up a split. All of them occur in training."""
    return tuple(name for i, name in enumerate(common_people()) if COMMON_SPLIT[i % 5] == split)


def key_word(name: str) -> str:
    """Return the word by which entities of one context differ: surname, name of the company, animal, tune."""
    first, _, second = name.partition(" ")
    return first if not second or second in FIRM_KINDS or second in INSTRUMENT_KINDS else second
