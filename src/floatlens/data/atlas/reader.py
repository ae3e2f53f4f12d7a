"""The reader of the atlas: `atlas` asks for one fact, `atlas:hops` for two that form a chain."""

from __future__ import annotations

from collections.abc import Iterator

from floatlens.data.atlas.datasets import NAMES, Sample, atlas_samples
from floatlens.errors import FloatLensError

PASSAGES = 5


def names(name: str) -> list[str]:
    """The data sets that a name stands for.

    >>> names("atlas"), names("atlas:hops")
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
    """Questions of one data set with the gold among `passages` passages.

    >>> next(samples("atlas", passages=0)).passages
    []
    """
    count = PASSAGES if passages is None else passages
    return atlas_samples(split or "test", limit, name=_part(name), passages=count, gold_at=gold_at, seed=seed or 0)


def _part(name: str) -> str:
    part = name.partition(":")[2] or "facts"
    if part not in NAMES:
        raise FloatLensError(f"the atlas has no data set {part!r}; it has {', '.join(NAMES)}")
    return part
