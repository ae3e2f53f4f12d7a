"""The data sets of the atlas of real facts: `atlas` asks for one fact, `atlas:hops` for two that form a chain."""

from __future__ import annotations

from collections.abc import Iterator

from floatlens.data.readers.registry import NamedData, register_reader
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError

PASSAGES = 5


def expand(name: str) -> list[str]:
    """Return the individual data sets of a name.

    >>> expand("atlas"), expand("atlas:hops")
    (['atlas'], ['atlas:hops'])
    """
    _part(name)
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
    """Yield the questions of one data set with the gold passages among `passages` passages.

    >>> next(samples("atlas", passages=0)).passages
    []
    """
    from floatlens.data.atlas.datasets import atlas_samples

    count = PASSAGES if passages is None else passages
    return atlas_samples(split or "test", limit, name=_part(name), passages=count, gold_at=gold_at, seed=seed or 0)


def _part(name: str) -> str:
    from floatlens.data.atlas.datasets import NAMES

    part = name.partition(":")[2] or "facts"
    if part not in NAMES:
        raise FloatLensError(f"the atlas has no data set {part!r}; it has {', '.join(NAMES)}")
    return part


register_reader(NamedData("atlas", expand, samples))
