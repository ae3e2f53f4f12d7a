"""Stress tests: the same questions at levels of increasing difficulty.

A test is a function that makes its levels, registered with one line.

`noise` adds distractors to the gold passages. They are the same for every model, each level keeps those of the previous one,
and none contains the answer. `position` moves the gold passage (lost in the middle, arXiv 2307.03172). `layout` arranges the
pieces of multi-hop evidence: together, k passages apart, together in reverse order, or shuffled. `masks` is the number of
mask tokens that a masked diffusion model is given to fill; for an autoregressive model the same numbers are the maximum
number of new tokens. `query` puts the question after the passages, before them, or on both sides. `collection`, in
`collection.py`, changes the documents from which passages are retrieved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from floatlens.data.sample import Passage, Sample, contains_words, move_gold, normalise
from floatlens.data.template import ORDERS
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.conditions import Condition, conditions
from floatlens.options import DETAIL, Data, Run, Sampling, option
from floatlens.registry import Registry

if TYPE_CHECKING:
    from floatlens.evaluation.loop import Experiment
    from floatlens.options import Recording

NAN = float("nan")
COUNTS = (0, 1, 2, 4, 8)  # of distractors
DISTRACTORS = ("random", "hard", "own")
SPARE = 50  # documents retrieved beyond those needed, since some contain the answer
MOST = 11  # default maximum number of positions
MASKS = (8, 16, 32, 64)
NAMES = {"last": "after", "first": "before", "both": "both"}  # of positions of the question


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
    """Options of a stress test: its levels, and how `floatlens stress` asks, scores and keeps its answers.

    `passages` is the number of passages per question, `seed` that of all random choices, `index` the documents in which
    `hard` distractors are retrieved, by default all passages of the data.
    """

    panel: ClassVar[str] = "Input"

    values: Sequence[int] | None = option(
        None, "Numbers of distractors, gold positions, distances or masks, such as 0,1,2,4 or 0:20:5.", flag="levels"
    )
    distractors: str = option("random", "Distractors of noise: random, hard (retrieved) or own (the data's).")
    intervention: list[str] | None = option(
        None, 'Also ask under an intervention such as "pin-anchors(across=layers)" and its control; repeat for several.'
    )
    controls: str = option("0", "Seeds of the matched random controls, such as 0,1,2.")
    score: str = option("accuracy", "Score of the curve: accuracy, accuracy_words, f1 or em.")
    trace: bool = option(False, "Keep a trace of every answer in --out.")
    detail: Literal["full", "summary"] = option("full", DETAIL)
    passages: int | None = option(None, "Number of passages per question.", flag=None)
    seed: int = option(0, "Seed of all random choices.", flag=None)
    index: Any = option(None, "Documents with hard distractors.", flag=None)


MakeLevels: TypeAlias = Callable[[Sequence[Sample], StressOptions], list[StressLevel]]


@dataclass(frozen=True)
class StressTest:
    """A stress test: its name, the label of its axis, a short description, and the function that makes its levels."""

    name: str
    axis: str
    about: str
    levels: MakeLevels


STRESSES: Registry[StressTest] = Registry("stress", "floatlens.evaluation", ("stress",))


def register_stress(name: str, *, axis: str, about: str) -> Callable[[MakeLevels], MakeLevels]:
    """Register a stress test by a decorator of the function that makes its levels; `axis` labels its figure's axis."""

    def register(levels: MakeLevels) -> MakeLevels:
        STRESSES.add(name, StressTest(name, axis, about, levels), source=levels)
        return levels

    return register


def stress_experiments(
    test: StressTest,
    models: Iterable[str],
    levels: Mapping[str, Sequence[StressLevel]],
    under: Sequence[Condition] = conditions(()),
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

    asked = [(data, level) for data, several in levels.items() for level in several]
    for model, (data, level), condition in product(models, asked, under):
        labels = {"stress": test.name, "level": level.name, "x": None if level.x != level.x else level.x}
        yield Experiment(
            model,
            data,
            f"{test.name}={level.name}" + (f" under {condition.name}" if condition.intervention else ""),
            level.samples,
            *level.options(sampling, reading),
            batch_size,
            labels=labels | {"intervention": condition.intervention, "of": condition.of},
            recording=recording,
            interventions=(condition.name,) if condition.intervention else (),
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


@register_stress("noise", axis="share of noise", about="distractors join the gold passages")
def noise_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Add each number of distractors to the gold passages."""
    counts = sorted(set(options.values or COUNTS))
    if counts[0] < 0:
        raise FloatLensError(f"--levels of stress noise must be 0 or more, got {counts[0]}")
    usable = with_gold(samples, 1, "noise")
    noise = find_distractors(samples, usable, counts[-1], options)
    made = []
    for count in counts:
        noisy = [_mix(sample, several[:count], options.seed) for sample, several in zip(usable, noise, strict=True)]
        shares = [1 - len(sample.gold) / len(sample.passages) for sample in noisy]
        made.append(StressLevel(str(count), sum(shares) / len(shares), noisy))
    return made


def _mix(sample: Sample, noise: list[Passage], seed: int) -> Sample:
    """Return the question with its gold passages among the noise, at positions that do not depend on the level."""
    gold = [passage for passage in sample.passages if passage.gold]
    random_ = draw(seed, sample)
    positions = sorted(random_.random() for _ in gold)
    passages = list(noise)
    for position, passage in reversed(list(zip(positions, gold, strict=True))):
        passages.insert(int(position * (len(noise) + 1)), passage)
    return sample.with_passages(passages)


def find_distractors(
    samples: Sequence[Sample], usable: Sequence[Sample], count: int, options: StressOptions
) -> list[list[Passage]]:
    """Return `count` distractors for each usable question, as `StressOptions` describes; own ones may be fewer."""
    check_known("kind of distractors", options.distractors, DISTRACTORS)
    if options.distractors == "own":
        return [[p for p in sample.passages if not p.gold][:count] for sample in usable]
    pool = list({p.line: Passage(p.text, p.title) for sample in samples for p in sample.passages}.values())
    index = options.index if options.distractors == "hard" else None
    if options.distractors == "hard" and index is None:
        from floatlens.data.retrieval import Document, Index

        index = Index(Document(str(i), passage) for i, passage in enumerate(pool))
    found = []
    for sample in usable:
        hits = [document.passage for document, _ in index.search(sample.question, count + SPARE)] if index else []
        best = [passage for passage in hits if is_distractor(passage, sample)][:count]
        found.append(best + _random(sample, count - len(best), best, pool, options.seed))
    return found


def is_distractor(passage: Passage, sample: Sample) -> bool:
    """Return whether a passage neither is gold nor contains the answer."""
    if any(contains_words(passage.line, answer) for answer in sample.answers):
        return False
    gold = [p for p in sample.passages if p.gold]
    return not any(normalise(p.text) == normalise(passage.text) or (p.title and p.title == passage.title) for p in gold)


def _random(sample: Sample, count: int, taken: Sequence[Passage], pool: Sequence[Passage], seed: int) -> list[Passage]:
    """Return passages of other questions that are not taken, in an order that depends on the seed and the question."""
    used = {p.line for p in taken}
    order, own = [p for p in pool if p.line not in used], {p.line for p in sample.passages}
    draw(seed, sample).shuffle(order)
    found = list(islice((p for p in order if p.line not in own and is_distractor(p, sample)), count))
    if len(found) < count:
        fitting = ",".join(str(each) for each in COUNTS if each <= len(found))
        raise FloatLensError(
            f"the data has only {len(found)} distractors for question {sample.id[:80]!r}, but {count} are needed; read more "
            f"questions, or use smaller numbers in --levels (such as --levels {fitting})"
        )
    return found


@register_stress("position", axis="position of the gold passage", about="the gold passage at each position")
def position_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Put the gold passage at each position among the same other passages."""
    usable = with_gold(samples, 1, "position")
    count = options.passages or min(len(sample.passages) for sample in usable)
    usable = [sample for sample in usable if len(sample.passages) >= count > len(sample.gold)]
    if not usable:
        raise FloatLensError(f"no question has its gold passage among {count} passages; use fewer with --passages")
    spread = range(count) if count <= MOST else [round(i * (count - 1) / (MOST - 1)) for i in range(MOST)]
    positions = sorted(set(options.values if options.values is not None else spread))
    for position in positions:
        if not 0 <= position < count:
            raise FloatLensError(
                f"gold position {position} in --levels is out of range; there are {count} passages, counted from 0"
            )
    return [
        StressLevel(str(position), float(position), [move_gold(sample, position, count) for sample in usable])
        for position in positions
    ]


@register_stress("layout", axis="passages between the evidence", about="multi-hop evidence together or apart")
def layout_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Lay out the evidence together, at each distance, reversed and shuffled."""
    usable = [_cut(sample, options.passages) for sample in with_gold(samples, 2, "layout")]
    widest = min((len(s.passages) - len(s.gold)) // (len(s.gold) - 1) for s in usable)
    wanted = options.values if options.values is not None else tuple(k for k in (1, 2, 4, 8) if k <= widest)
    for k in wanted:
        if not 1 <= k <= widest:
            raise FloatLensError(
                f"evidence cannot be {k} passages apart in all questions; use 1 to {widest} in --levels"
            )
    made = [StressLevel("together", 0.0, [space_gold(s, 0) for s in usable])]
    made += [StressLevel(f"apart {k}", float(k), [space_gold(s, k) for s in usable]) for k in sorted(set(wanted))]
    made.append(StressLevel("reversed", NAN, [space_gold(s, 0, reverse=True) for s in usable]))
    made.append(StressLevel("shuffled", NAN, [_shuffle(s, options.seed) for s in usable]))
    return made


def space_gold(sample: Sample, k: int, reverse: bool = False) -> Sample:
    """Return the question with k other passages between its gold passages, in the middle of the rest.

    >>> texts = [Passage(t, gold=t in "GH") for t in "GHabcd"]
    >>> ["".join(p.text for p in space_gold(Sample("1", "Q?", ["x"], texts), k).passages) for k in (0, 1, 4)]
    ['abGHcd', 'aGbHcd', 'GabcdH']
    """
    gold = [p for p in sample.passages if p.gold]
    others = [p for p in sample.passages if not p.gold]
    gold = gold[::-1] if reverse else gold
    at = (len(others) - k * (len(gold) - 1)) // 2
    passages: list[Passage] = others[:at]
    for piece in gold[:-1]:
        passages += [piece, *others[at : at + k]]
        at += k
    return sample.with_passages([*passages, gold[-1], *others[at:]])


def _shuffle(sample: Sample, seed: int) -> Sample:
    passages = list(sample.passages)
    draw(seed, sample).shuffle(passages)
    return sample.with_passages(passages)


def _cut(sample: Sample, count: int | None) -> Sample:
    if count is None:
        return sample
    room = max(0, count - len(sample.gold))
    others = {id(p) for p in [p for p in sample.passages if not p.gold][:room]}
    return sample.with_passages([p for p in sample.passages if p.gold or id(p) in others])


@register_stress("masks", axis="mask tokens appended", about="more mask tokens than the answer needs")
def mask_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Ask with each number of mask tokens."""
    counts = sorted(set(options.values or MASKS))
    if counts[0] < 1:
        raise FloatLensError(f"--levels of stress masks must be 1 or more, got {counts[0]}")
    return [StressLevel(str(count), float(count), list(samples), {"max_new_tokens": count}) for count in counts]


@register_stress("query", axis="position of the question", about="the question after, before, or on both sides")
def query_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Ask with the question at each position."""
    return [StressLevel(NAMES[order], NAN, list(samples), {"order": order}) for order in ORDERS]
