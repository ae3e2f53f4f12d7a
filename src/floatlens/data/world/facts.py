"""Who lives in the world, and what is true of them?

Entities come in two flavours. *Common* people recur in training with facts that never change, so a model can know them
by heart. *Fresh* entities are pairs of name words; each pair belongs to exactly one split, and its facts are drawn anew
for every context, so only the context can tell.
"""

import random
from dataclasses import dataclass
from functools import cache
from zlib import crc32

from floatlens.data.world.relations import LIFE, RELATIONS
from floatlens.data.world.vocabulary import (
    ANIMALS,
    COLOURS,
    DAYS,
    FIRM_KINDS,
    INSTRUMENT_KINDS,
    MONTHS,
    PASSWORDS,
    SEED,
    TRADES,
    YEARS,
    words,
)

SPLITS = ("train", "validation", "test")
COMMON_SPLIT = ("test", "validation", "train", "train", "train")


@dataclass(frozen=True)
class Fact:
    """`subject` stands in `relation` to `object`, all as they are written."""

    subject: str
    relation: str
    object: str

    def tell(self, draw: random.Random, plain: bool = False) -> str:
        """A sentence that states the fact; `plain` is always the same one."""
        statements = RELATIONS[self.relation].statements
        return (statements[0] if plain else draw.choice(statements)).format(s=self.subject, o=self.object)

    def ask(self, draw: random.Random) -> str:
        """A question whose answer is the object."""
        return draw.choice(RELATIONS[self.relation].questions).format(s=self.subject)

    def slot(self) -> str:
        """The question as slot filling.

        >>> Fact("Mara Tolvin", "birthplace", "Keldor").slot()
        'Mara Tolvin [SEP] birthplace'
        """
        return f"{self.subject} [SEP] {RELATIONS[self.relation].slot}"


def split_of(name: str) -> str:
    """The one split to which a fresh entity belongs, by its name: four fifths train, a tenth each of the others."""
    return (*["train"] * 8, "validation", "test")[crc32(f"{SEED} {name}".encode()) % 10]


def pairs(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """First and second words of the fresh entities of a kind; every combination is a name.

    >>> [len(half) for half in pairs("person")]
    [120, 480]
    """
    w = words()
    return {
        "person": (w.given, w.surname),
        "firm": (w.firm, tuple(FIRM_KINDS)),
        "ship": (tuple(COLOURS), tuple(ANIMALS)),
        "instrument": (w.tune, tuple(INSTRUMENT_KINDS)),
    }[kind]


def entity(kind: str, draw: random.Random, split: str, width: int = 10**6) -> str:
    """A fresh entity of a split; towns are single words, shared by all splits. `width` narrows the pool of words."""
    if kind == "town":
        return draw.choice(words().town[:width])
    firsts, seconds = pairs(kind)
    while True:
        name = f"{draw.choice(firsts[:width])} {draw.choice(seconds[:width])}"
        if split_of(name) == split:
            return name


def thing(kind: str, draw: random.Random, split: str) -> str:
    """An object of a kind: an entity, a plain word, a year or a date."""
    if kind == "date":
        return f"{draw.choice(DAYS)} {draw.choice(MONTHS)} {draw.choice(YEARS)}"
    plain = {"river": words().river, "year": YEARS, "trade": TRADES, "password": PASSWORDS}.get(kind)
    return draw.choice(plain) if plain else entity(kind, draw, split)


def fresh_fact(relation: str, draw: random.Random, split: str, subject: str = "") -> Fact:
    """A fact drawn anew, about `subject` or about a fresh entity of the split."""
    kinds = RELATIONS[relation]
    subject = subject or entity(kinds.subject, draw, split)
    return Fact(subject, relation, thing(kinds.object, draw, split))


@cache
def common_people() -> dict[str, tuple[Fact, ...]]:
    """The people who recur in training, each with the facts of a life that never change."""
    draw = random.Random(f"common {SEED}")
    given = words().given
    people = {}
    for surname in words().common_surname:
        name = f"{draw.choice(given)} {surname}"
        people[name] = tuple(fresh_fact(relation, draw, "train", name) for relation in LIFE)
    return people


@cache
def common_names(split: str) -> tuple[str, ...]:
    """Common people whose questions make up a split. All of them occur in training: that is what common means."""
    return tuple(name for i, name in enumerate(common_people()) if COMMON_SPLIT[i % 5] == split)


def key_word(name: str) -> str:
    """The word by which entities of one context differ: surname, company's name, animal, tune.

    >>> key_word("Mara Tolvin"), key_word("Orvanco Works")
    ('Tolvin', 'Orvanco')
    """
    first, _, second = name.partition(" ")
    return first if not second or second in FIRM_KINDS or second in INSTRUMENT_KINDS else second
