"""Stress tests: the same questions at levels of increasing difficulty. The base class and the registry.

A test is one file with a function that makes its levels, registered with one line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.conditions import PLAIN, Condition
from floatlens.options import Data, Run, Sampling
from floatlens.registry import Registry

if TYPE_CHECKING:
    from floatlens.data.retrieval import Index
    from floatlens.evaluation.loop import Experiment
    from floatlens.options import Recording


@dataclass(frozen=True)
class StressLevel:
    """The questions as they are asked at one level.

    `x` is its value on the axis, NaN if it has none; `changes` are options of this level, such as `max_new_tokens`.
    """

    name: str
    x: float
    samples: list[Sample]
    changes: Mapping[str, Any] = field(default_factory=dict)

    def options(self, sampling: Sampling, reading: Data) -> tuple[Sampling, Data]:
        """Return the options with the changes of this level."""
        changes = dict(self.changes)
        if sampling.steps is not None and "max_new_tokens" in changes:  # no step may be left without a token
            changes.setdefault("steps", min(sampling.steps, changes["max_new_tokens"]))
        one, other = ({n: v for n, v in changes.items() if n in vars(value)} for value in (sampling, reading))
        return replace(sampling, **one), replace(reading, **other)


@dataclass(frozen=True)
class StressOptions:
    """Options of a stress test.

    Parameters
    ----------
    values: the levels, such as numbers of distractors; each test has its own defaults.
    passages: number of passages per question.
    distractors: `random`, `hard` or `own` (see `noise.py`); `index` is where hard ones are retrieved from.
    seed: seed of all random choices.
    """

    values: tuple[int, ...] | None = None
    passages: int | None = None
    distractors: str = "random"
    seed: int = 0
    index: Index | None = None


MakeLevels: TypeAlias = Callable[[Sequence[Sample], StressOptions], list[StressLevel]]


@dataclass(frozen=True)
class StressTest:
    """A stress test: its name, the label of its axis, a short description, and the function that makes its levels."""

    name: str
    axis: str
    about: str
    levels: MakeLevels


STRESSES: Registry[StressTest] = Registry("stress", "floatlens.evaluation.stress", ("noise", "position"))


def register_stress(name: str, *, axis: str, about: str, priority: int = 0) -> Callable[[MakeLevels], MakeLevels]:
    """Register a stress test, as the decorator of the function that makes its levels.

    Parameters
    ----------
    axis: label of the axis of its figure.
    about: a short description.
    priority: tests with a higher one come first in lists and reports.
    """

    def register(levels: MakeLevels) -> MakeLevels:
        STRESSES.add(name, StressTest(name, axis, about, levels), priority=priority, source=levels)
        return levels

    return register


def stress_experiments(
    test: StressTest,
    models: Iterable[str],
    levels: Mapping[str, Sequence[StressLevel]],
    conditions: Sequence[Condition] = (Condition.plain(),),
    *,
    sampling: Sampling = Sampling(),
    reading: Data = Data(),
    batch_size: int = Run.batch_size,
    recording: Recording | None = None,
) -> Iterator[Experiment]:
    """Yield the jobs of a stress test: every model, data set (by its label), level and condition.

    `condition` of a job is the test with its level and the intervention, `x` the value on the axis.
    """
    from floatlens.evaluation.loop import Experiment

    for model in models:
        for data, several in levels.items():
            for level in several:
                for under in conditions:
                    changed = under.role != PLAIN
                    labels = {"stress": test.name, "level": level.name, "x": None if level.x != level.x else level.x}
                    yield Experiment(
                        model,
                        data,
                        f"{test.name}={level.name}" + (f" under {under.name}" if changed else ""),
                        level.samples,
                        *level.options(sampling, reading),
                        batch_size,
                        count=len(level.samples),
                        labels=labels | ({"intervention": under.name, "of": under.of} if changed else {}),
                        recording=recording,
                        interventions=(under.name,) if changed else (),
                    )


def draw(seed: int, sample: Sample) -> random.Random:
    """Return a random generator that depends only on the seed and the question: the same for every model and level."""
    return random.Random(f"{seed} {sample.id}")


def with_gold(samples: Sequence[Sample], least: int, stress: str) -> list[Sample]:
    """Return the questions with at least `least` gold passages; FloatLensError if there are none."""
    usable = [sample for sample in samples if len(sample.gold) >= least]
    if not usable:
        what = "a gold passage" if least == 1 else f"{least} gold passages"
        raise FloatLensError(
            f"stress {stress} needs questions with {what}; none of the {len(samples)} questions has that"
        )
    return usable
