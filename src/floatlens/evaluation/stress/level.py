"""A stress test is a row of levels: the same questions, asked ever harder."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from floatlens.data.retrieval import Index
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import Asking


@dataclass(frozen=True)
class Level:
    """The questions as they are asked at one level; `x` is its place on the axis, NaN if it has none."""

    name: str
    x: float
    samples: list[Sample]
    asking: Asking


@dataclass(frozen=True)
class Options:
    """What a user may choose: the levels, how many passages, which distractors, the seed of any shuffling."""

    values: tuple[int, ...] | None = None
    passages: int | None = None
    distractors: str = "random"
    seed: int = 0
    index: Index | None = None


@dataclass(frozen=True)
class Stress:
    """A stress test: what its axis is, and its levels for given questions."""

    name: str
    axis: str
    about: str
    levels: Callable[[Sequence[Sample], Asking, Options], list[Level]]


def draw(seed: int, sample: Sample) -> random.Random:
    """Random choices that depend on the question alone, so that every model and level sees the same ones."""
    return random.Random(f"{seed} {sample.id}")


def with_gold(samples: Sequence[Sample], least: int, stress: str) -> list[Sample]:
    """The questions that have at least so many gold passages; without any there is nothing to stress."""
    usable = [sample for sample in samples if len(sample.gold) >= least]
    if not usable:
        what = "a gold passage" if least == 1 else f"{least} gold passages"
        raise FloatLensError(
            f"stress {stress} needs questions with {what}; none of the {len(samples)} questions has that"
        )
    return usable
