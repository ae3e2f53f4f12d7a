"""Noise: distractors that are added to the gold passages.

The axis is the share of passages that are noise. Distractors are the same for every model, and each level keeps those of
the previous level. None of them contains the answer. They are drawn at random from other questions, retrieved by their
similarity to the question, or the question's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from floatlens.data.sample import Passage, Sample, contains_words, normalise
from floatlens.errors import FloatLensError, check_known
from floatlens.evaluation.stress.stress import StressLevel, StressOptions, draw, register_stress, with_gold

if TYPE_CHECKING:
    from floatlens.data.retrieval import Index

COUNTS = (0, 1, 2, 4, 8)
KINDS = ("random", "hard", "own")
SPARE = 50  # documents retrieved beyond those needed, since some contain the answer
Distract = Callable[[Sample, int], list[Passage]]


@register_stress("noise", axis="share of noise", about="distractors join the gold passages", priority=50)
def levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Add each number of distractors to the gold passages."""
    counts = sorted(set(options.values or COUNTS))
    if counts[0] < 0:
        raise FloatLensError(f"{counts[0]} distractors are not possible; use numbers from 0 in --levels")
    usable = with_gold(samples, 1, "noise")
    distract = find_distractors(samples, options)
    noise = {sample.id: distract(sample, counts[-1]) for sample in usable}
    made = []
    for count in counts:
        noisy = [_mix(sample, noise[sample.id][:count], options.seed) for sample in usable]
        shares = [1 - len(sample.gold) / len(sample.passages) for sample in noisy]
        made.append(StressLevel(str(count), sum(shares) / len(shares), noisy))
    return made


def _mix(sample: Sample, noise: list[Passage], seed: int) -> Sample:
    """Return the question with its gold passages among the noise, at positions that do not depend on the level."""
    gold = [passage for passage in sample.passages if passage.gold]
    random = draw(seed, sample)
    positions = sorted(random.random() for _ in gold)
    passages = list(noise)
    for position, passage in reversed(list(zip(positions, gold, strict=True))):
        passages.insert(int(position * (len(noise) + 1)), passage)
    return sample.with_passages(passages)


def find_distractors(samples: Sequence[Sample], options: StressOptions) -> Distract:
    """Return a function that finds distractors for a question, as many as wanted.

    `random` draws passages of other questions, `hard` takes the best BM25 hits for the question among all passages (or
    in the corpus), `own` takes the question's own passages that are not gold.
    """
    check_known("kind of distractors", options.distractors, KINDS)
    if options.distractors == "own":
        return lambda sample, count: [p for p in sample.passages if not p.gold][:count]
    pool = list({p.line: Passage(p.text, p.title) for sample in samples for p in sample.passages}.values())
    if options.distractors == "hard":
        index = options.index or _index(pool)
        return lambda sample, count: _hard(sample, count, index, pool, options.seed)
    return lambda sample, count: _random(sample, count, pool, options.seed)


def is_distractor(passage: Passage, sample: Sample) -> bool:
    """Return whether a passage neither is gold nor contains the answer."""
    if any(contains_words(passage.line, answer) for answer in sample.answers):
        return False
    gold = [p for p in sample.passages if p.gold]
    return not any(normalise(p.text) == normalise(passage.text) or (p.title and p.title == passage.title) for p in gold)


def _random(sample: Sample, count: int, pool: Sequence[Passage], seed: int) -> list[Passage]:
    own = {p.line for p in sample.passages}
    order = list(range(len(pool)))
    draw(seed, sample).shuffle(order)
    found: list[Passage] = []
    for index in order:
        if len(found) == count:
            return found
        if pool[index].line not in own and is_distractor(pool[index], sample):
            found.append(pool[index])
    if len(found) < count:
        raise FloatLensError(
            f"the data has only {len(found)} distractors for question {sample.id[:80]!r}, but {count} are needed; read more "
            f"questions, or use smaller numbers in --levels (such as --levels {_smaller(len(found))})"
        )
    return found


def _smaller(most: int) -> str:
    """Return levels that fit the number of distractors."""
    return ",".join(str(count) for count in COUNTS if count <= most)


def _hard(sample: Sample, count: int, index: Index, pool: Sequence[Passage], seed: int) -> list[Passage]:
    """Return the best hits, and random passages if too few share a word with the question."""
    hits = [document.passage for document, _ in index.search(sample.question, count + SPARE)]
    found = [passage for passage in hits if is_distractor(passage, sample)][:count]
    if len(found) < count:
        taken = {passage.line for passage in found}
        found += _random(sample, count - len(found), [p for p in pool if p.line not in taken], seed)
    return found


def _index(pool: Sequence[Passage]) -> Index:
    from floatlens.data.retrieval import Document, Index

    return Index(Document(str(i), passage) for i, passage in enumerate(pool))
