"""The data sets of the atlas of real facts: `atlas` asks for one fact, `atlas:hops` for two that form a chain.

The questions of a split are fixed. `seed` changes distractors, the wording of passages and their order; `phrasing`
changes the wording of questions.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import cache

from floatlens.data.atlas.facts import RELATIONS, SPLITS, AtlasFact, Chain, chains, facts, mentions
from floatlens.data.read import NamedData, register_reader
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError, unknown_name

SAME = 0.8  # share of distractors that state the question's relation about another subject
TRIES = 60  # draws per distractor before giving up


def samples(
    name: str = "atlas",
    split: str | None = None,
    limit: int | None = None,
    *,
    passages: int | None = None,
    gold_at: int | None = None,
    seed: int | None = None,
    phrasing: int = 0,
) -> Iterator[Sample]:
    """Yield the samples of a split, in a fixed mixed order: 5 passages each by default, the gold one anywhere.

    >>> sample = next(samples("atlas", passages=3, gold_at=1))
    >>> len(sample.passages), sample.gold, sample.answers[0] in sample.passages[1].text
    (3, [1], True)
    """
    part, split = "hops" if name == "atlas:hops" else "facts", split or "test"
    if split not in SPLITS:
        raise unknown_name("split of the atlas", split, SPLITS)
    if passages is not None and passages < 0:
        raise FloatLensError(f"passages {passages} is negative; use 0 for closed book")
    for item in questions(part, split)[:limit]:
        yield make(item, 5 if passages is None else passages, gold_at, seed or 0, phrasing)


@cache
def questions(name: str, split: str) -> tuple[AtlasFact | Chain, ...]:
    """The facts or chains of a split, in a fixed shuffled order."""
    items: Sequence[AtlasFact | Chain] = facts() if name == "facts" else chains()
    return tuple(sorted((item for item in items if item.split == split), key=lambda item: number(item.id)))


def number(key: str) -> int:
    """A hash of the key that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def make(item: AtlasFact | Chain, passages: int, gold_at: int | None, seed: int, phrasing: int) -> Sample:
    """One question with its gold passages among `passages` passages."""
    draw = random.Random(f"{seed} {item.id}")
    evidence = [Passage(draw.choice(texts), title, gold=True) for title, texts in item.evidence]
    gold, others = evidence[:passages], distractors(item, max(0, passages - len(evidence)), draw)
    asked = item.questions
    return Sample(
        id=item.id,
        question=asked[(number(item.id) + phrasing) % len(asked)],
        answers=list(item.answers),
        passages=placed(gold, others, draw, gold_at),
        meta={"kind": item.kind, "relation": item.relation, "subject": item.subject, "split": item.split},
    )


def distractors(item: AtlasFact | Chain, count: int, draw: random.Random) -> list[Passage]:
    """Passages of the same split about other things, mostly in the same relation, none with a gold answer."""
    pools = [
        [other for fact in item.facts for other in pool(item.split, relation=fact.relation)],
        pool(item.split, table=RELATIONS[item.facts[0].relation].table),
        pool(item.split),
    ]
    titles = {fact.title for fact in item.facts}
    chosen: list[Passage] = []
    for attempt in range(TRIES * count):
        level = (draw.random() >= SAME) + len(pools) * attempt // (TRIES * count)  # widen the pool after many tries
        other = draw.choice(pools[min(level, len(pools) - 1)])
        text = draw.choice(other.statements)
        if other.title not in titles and not mentions(f"{other.title} {text}", item.banned):
            titles.add(other.title)
            chosen.append(Passage(text, other.title))
            if len(chosen) == count:
                return chosen
    if len(chosen) < count:
        raise FloatLensError(
            f"the {item.split} split of the atlas has {len(chosen)} distractors for {item.id!r}, not {count}; "
            "ask for fewer passages"
        )
    return chosen


@cache
def pool(split: str, *, relation: str = "", table: str = "") -> tuple[AtlasFact, ...]:
    """Facts of a split, optionally of one relation or one table only."""
    return tuple(
        fact
        for fact in facts()
        if fact.split == split and relation in ("", fact.relation) and table in ("", RELATIONS[fact.relation].table)
    )


def placed(gold: list[Passage], others: list[Passage], draw: random.Random, gold_at: int | None) -> list[Passage]:
    """All passages in order, with the gold ones together at `gold_at`, or at random indices."""
    if gold_at is None:
        every = [*gold, *others]
        return draw.sample(every, len(every))
    at = min(gold_at, len(others))
    return [*others[:at], *gold, *others[at:]]


register_reader(NamedData("atlas", ["atlas", "atlas:hops"], samples))
