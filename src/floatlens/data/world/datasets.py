"""The data sets of the synthetic world: `world:common`, `world:fresh` and so on, or `world` for all of them.

They mirror those of the paper. The questions of a split are fixed; `seed` changes only the distractors, the wording and the
order of the passages.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from floatlens.data.read import NamedData, register_reader
from floatlens.data.sample import Sample
from floatlens.data.world.episodes import SINGLE, Episode, chain, hops, life, long, needle, single
from floatlens.data.world.facts import HOPS, SEED, SPLITS, common_names, common_people, entity, fresh_fact
from floatlens.errors import unknown_name

SIZES = {"train": 2000, "validation": 400, "test": 1000}
NAMES = ("common", "fresh", "long", "hops", "slots", "needle")


def make(
    name: str, fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None
) -> tuple[str, Episode]:
    """The subject of a question, and its episode with n passages; `fixed` draws the question, `draw` the rest.

    common asks for a fact about people who recur in training, fresh about entities that never do, slots the same as
    NAME [SEP] relation, long for all that is known about a person (24 to 32 tokens), hops for two facts that form a chain
    (the bridge and the end), needle for a secret word in a haystack of passages.
    """
    if name == "long":
        subject = entity("person", fixed, split)
        return subject, long(life(subject, fixed, split), n, draw, split, gold_at=gold_at)
    if name == "hops":
        hop = fixed.choice(HOPS)
        pair = chain(hop, fixed, split, set())
        return pair[0].subject, hops(hop, n, draw, split, gold_at=gold_at, target=pair)
    if name == "needle":
        target = fresh_fact("password", fixed, split)
        return target.subject, needle(target, n, draw, split, gold_at=gold_at)
    common, slot = name == "common", name == "slots"
    if common:
        target = fixed.choice(common_people()[fixed.choice(common_names(split))])
    else:
        target = fresh_fact(fixed.choice(SINGLE), fixed, split)
    question = "" if slot else target.ask(fixed)
    return target.subject, single(target, n, draw, split, question=question, slot=slot, common=common, gold_at=gold_at)


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
    if split not in SPLITS:
        raise unknown_name("split of the world", split, SPLITS)
    if passages is None:
        passages = 20 if name == "needle" else 5
    size = SIZES[split] if name != "common" else 4 * len(common_names(split))
    seen: set[tuple[str, str]] = set()
    tries = 0
    while len(seen) < min(size, size if limit is None else limit):
        fixed = random.Random(f"{SEED} {name} {split} {tries}")
        draw = random.Random(f"{seed or 0} {name} {split} {tries}")
        tries += 1
        subject, episode = make(name, fixed, draw, split, passages, gold_at)
        turn = episode.turns[0]
        if (subject, turn.relation) in seen:
            continue
        yield Sample(
            id=f"{name}-{split}-{len(seen)}",
            question=turn.question,
            answers=[turn.answer],
            passages=[replace(passage, gold=i in turn.gold) for i, passage in enumerate(episode.passages)],
            meta={"kind": name, "relation": turn.relation, "subject": subject},
        )
        seen.add((subject, turn.relation))


register_reader(NamedData("world", [f"world:{name}" for name in NAMES], samples))
