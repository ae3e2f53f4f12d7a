"""The data sets of the world: which questions there are, and where they come from.

Six data sets that mirror those of the paper, in a KILT-like layout, one row per question:
`{"id", "input", "output": [{"answer"}], "passage": [{"segment", "title", "gold"}], "kind", "relation"}`.
The questions of a split are fixed; `seed` changes only the distractors, the wording and the order of the passages.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from floatlens.data.world.episodes import SINGLE, Episode, chain, hops, life, long, needle, single
from floatlens.data.world.facts import SPLITS, common_names, common_people, entity, fresh_fact
from floatlens.data.world.relations import HOPS
from floatlens.data.world.vocabulary import SEED
from floatlens.errors import FloatLensError

NAMES = {
    "common": "one fact about people who recur in training",
    "fresh": "one fact about entities that never occur in training",
    "long": "all that is known about a person, 24 to 32 tokens",
    "hops": "two facts that form a chain: the bridge and the end",
    "slots": "one fact, asked as NAME [SEP] relation",
    "needle": "a secret word in a haystack of passages",
}
SIZES = {"train": 2000, "validation": 400, "test": 1000}
Maker = Callable[[random.Random, random.Random, str, int, int | None], tuple[str, Episode]]


def _fresh(fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None) -> tuple[str, Episode]:
    target = fresh_fact(fixed.choice(SINGLE), fixed, split)
    return target.subject, single(target, n, draw, split, question=target.ask(fixed), gold_at=gold_at)


def _slots(fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None) -> tuple[str, Episode]:
    target = fresh_fact(fixed.choice(SINGLE), fixed, split)
    return target.subject, single(target, n, draw, split, slot=True, gold_at=gold_at)


def _common(fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None) -> tuple[str, Episode]:
    target = fixed.choice(common_people()[fixed.choice(common_names(split))])
    return target.subject, single(target, n, draw, split, question=target.ask(fixed), common=True, gold_at=gold_at)


def _long(fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None) -> tuple[str, Episode]:
    subject = entity("person", fixed, split)
    return subject, long(life(subject, fixed, split), n, draw, split, gold_at=gold_at)


def _hops(fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None) -> tuple[str, Episode]:
    hop = fixed.choice(HOPS)
    target = chain(hop, fixed, split, set())
    return target[0].subject, hops(hop, n, draw, split, gold_at=gold_at, target=target)


def _needle(fixed: random.Random, draw: random.Random, split: str, n: int, gold_at: int | None) -> tuple[str, Episode]:
    target = fresh_fact("password", fixed, split)
    return target.subject, needle(target, n, draw, split, gold_at=gold_at)


MAKERS: dict[str, Maker] = {
    "common": _common,
    "fresh": _fresh,
    "long": _long,
    "hops": _hops,
    "slots": _slots,
    "needle": _needle,
}


def samples(
    name: str,
    split: str = "test",
    limit: int | None = None,
    *,
    passages: int = 5,
    gold_at: int | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set, the gold passage among `passages` passages (0: closed book), at `gold_at` if given.

    >>> row = next(samples("fresh", "test", passages=3, gold_at=0))
    >>> row["passage"][0]["gold"], row["output"][0]["answer"] in row["passage"][0]["segment"]
    (True, True)
    """
    if name not in MAKERS:
        raise FloatLensError(f"the world has no data set {name!r}; it has {', '.join(NAMES)}")
    if split not in SPLITS:
        raise FloatLensError(f"the world has no split {split!r}; it has {', '.join(SPLITS)}")
    size = SIZES[split] if name != "common" else 4 * len(common_names(split))
    seen: set[tuple[str, str]] = set()
    made = tries = 0
    while made < min(size, size if limit is None else limit):
        fixed = random.Random(f"{SEED} {name} {split} {tries}")
        draw = random.Random(f"{seed} {name} {split} {tries}")
        tries += 1
        subject, episode = MAKERS[name](fixed, draw, split, passages, gold_at)
        turn = episode.turns[0]
        if (subject, turn.relation) in seen:
            continue
        seen.add((subject, turn.relation))
        yield {
            "id": f"{name}-{split}-{made}",
            "input": turn.question,
            "output": [{"answer": turn.answer}],
            "passage": [
                {"segment": passage.text, **({"title": passage.title} if passage.title else {}), "gold": i in turn.gold}
                for i, passage in enumerate(episode.passages)
            ],
            "kind": name,
            "relation": turn.relation,
            "subject": subject,
        }
        made += 1


def write(out: Path, *, passages: int = 5, seed: int = 0) -> list[Path]:
    """Write every data set and split as `out/NAME/SPLIT.jsonl`; the needle has four times as many passages."""
    paths = []
    for name in NAMES:
        for split in SPLITS:
            path = out / name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            n = 4 * passages if name == "needle" else passages
            with path.open("w", encoding="utf-8") as file:
                for row in samples(name, split, passages=n, seed=seed):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
            paths.append(path)
    return paths
