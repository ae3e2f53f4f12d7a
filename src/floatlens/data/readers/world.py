"""The data sets of the synthetic world: `world:common`, `world:fresh` and so on, or `world` for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from floatlens.data.readers import kilt
from floatlens.data.readers.registry import NamedData, register_reader
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError

PASSAGES = 5
NEEDLE = 4  # the needle has this many times more passages


def expand(name: str) -> list[str]:
    """Return the individual data sets of a name."""
    from floatlens.data.world.datasets import NAMES

    _, colon, part = name.partition(":")
    if not colon:
        return [f"world:{each}" for each in NAMES]
    if part not in NAMES:
        raise FloatLensError(f"the world has no data set {part!r}; it has {', '.join(NAMES)}")
    return [name]


def samples(
    name: str,
    split: str | None = None,
    limit: int | None = None,
    *,
    passages: int | None = None,
    gold_at: int | None = None,
    seed: int | None = None,
) -> Iterator[Sample]:
    """Yield the questions of one data set with the gold passages among `passages` passages."""
    from floatlens.data.world import datasets

    part = name.partition(":")[2]
    count = passages if passages is not None else PASSAGES * (NEEDLE if part == "needle" else 1)
    rows = datasets.samples(part, split or "test", limit, passages=count, gold_at=gold_at, seed=seed or 0)
    for number, row in enumerate(rows, 1):
        yield kilt.sample(row, f"{part}-{number}")


register_reader(NamedData("world", expand, samples))
