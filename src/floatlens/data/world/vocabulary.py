"""The words of the invented world.

Names are built from syllables by a seeded generator; every name word becomes one token of the tokenizer, so that a
question about copying is a question about attention and not about spelling. All of it is invented; any
resemblance to a real name is a coincidence.
"""

# ruff: noqa: SIM905 (word lists read better as text)

import random
from dataclasses import dataclass
from functools import cache

SEED = 2601

# how many words of each kind, and the endings that give each kind its sound
POOLS = {
    "given": (120, ("a", "o", "en", "is", "ir")),
    "surname": (480, ("vin", "sk", "mar", "dell", "rok", "lund", "tt", "quist")),
    "common_surname": (480, ("ard", "ov", "ette", "son", "wick", "ane", "ulf", "im")),
    "town": (240, ("dor", "holm", "stead", "burg", "mouth", "field", "ton")),
    "river": (96, ("n", "be", "sa", "ul", "erre")),
    "firm": (120, ("co", "tex", "lux", "gan", "dyne")),
    "tune": (64, ("ai", "eo", "ua", "ith")),
}
ONSETS = "b br c d dr f fl g gr h j k kl l m n p pr qu r s sk sl st t th tr v w y z".split()
VOWELS = "a e i o u a e i o u au ei".split()
LINKS = "b d f g l m n r s t v".split()  # between a stem and an ending that starts with a vowel

TRADES = """
baker barber blacksmith bookbinder brewer butcher carpenter cartographer chemist clerk clockmaker cook cooper
dentist diver dyer engraver farmer fisher gardener glazier goldsmith hatter hunter jeweller judge lawyer locksmith
mason miller miner nurse painter pilot plumber poet potter printer sailor sculptor shepherd singer smith surgeon
tailor tanner teacher weaver""".split()
FIRM_KINDS = "Works Mills Brothers Company Foundry Press".split()
COLOURS = """Amber Azure Black Blue Brave Bright Calm Crimson Dark Golden Green Grey Ivory Little Lone Merry Old Pale
Proud Quiet Red Royal Scarlet Silent Silver Swift Wandering White Wild Young""".split()
ANIMALS = """Badger Bear Crane Crow Dolphin Dove Eagle Falcon Finch Fox Gull Hare Hawk Heron Hound Ibis Lark Lion Lynx
Marten Osprey Otter Owl Pike Raven Seal Stag Swan Tern Wolf""".split()
INSTRUMENT_KINDS = "lute viola harp flute organ cello drum horn".split()
PASSWORDS = """acorn anchor apple arrow basket beacon bottle bridge bucket button candle carpet castle chimney clover
copper cotton feather garden ginger hammer harbour honey kettle ladder lantern lemon marble meadow mirror needle
oyster paper pepper pillow pocket quarry ribbon saddle shadow shovel spider spoon sugar thimble thunder timber tulip
turnip velvet violet walnut whistle window""".split()
MONTHS = """January February March April May June July August September October November December""".split()
YEARS = [str(year) for year in range(1801, 1921)]
DAYS = [str(day) for day in range(1, 29)]


@dataclass(frozen=True)
class WorldWords:
    """The name words of the world by kind; no word has two kinds."""

    given: tuple[str, ...]
    surname: tuple[str, ...]
    common_surname: tuple[str, ...]
    town: tuple[str, ...]
    river: tuple[str, ...]
    firm: tuple[str, ...]
    tune: tuple[str, ...]


@cache
def words(seed: int = SEED) -> WorldWords:
    """Return the name words of the world with this seed.

    >>> len(words().town), words().town[0] == words().town[0].capitalize()
    (240, True)
    """
    draw = random.Random(f"words {seed}")
    plain = [*TRADES, *COLOURS, *ANIMALS, *INSTRUMENT_KINDS, *PASSWORDS, *MONTHS, *FIRM_KINDS]
    taken = {word.lower() for word in plain}
    pools = {}
    for kind, (count, endings) in POOLS.items():
        made: list[str] = []
        while len(made) < count:
            stem = "".join(draw.choice(ONSETS) + draw.choice(VOWELS) for _ in range(draw.choice((1, 1, 2))))
            ending = draw.choice(endings)
            word = stem + (draw.choice(LINKS) if ending[0] in "aeiou" else "") + ending
            if word not in taken and 4 <= len(word) <= 10:
                taken.add(word)
                made.append(word.capitalize())
        pools[kind] = tuple(made)
    return WorldWords(**pools)
