"""Noise: how much is lost when distractors join the gold passages?

The axis is the share of passages that are noise. Distractors are the same for every model, and those of a level are
among those of the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import Asking
from floatlens.evaluation.stress.distractors import finder
from floatlens.evaluation.stress.level import Level, Options, Stress, draw, with_gold

COUNTS = (0, 1, 2, 4, 8)


def levels(samples: Sequence[Sample], asking: Asking, options: Options) -> list[Level]:
    counts = sorted(set(options.values or COUNTS))
    if counts[0] < 0:
        raise FloatLensError(f"noise of {counts[0]} passages is not possible; give numbers from 0")
    usable = with_gold(samples, 1, "noise")
    find = finder(samples, options)
    noise = {sample.id: find(sample, counts[-1]) for sample in usable}
    made = []
    for count in counts:
        noisy = [_noisy(sample, noise[sample.id][:count], options.seed) for sample in usable]
        shares = [1 - len(sample.gold) / len(sample.passages) for sample in noisy]
        made.append(Level(str(count), sum(shares) / len(shares), noisy, asking))
    return made


def _noisy(sample: Sample, noise: list[Passage], seed: int) -> Sample:
    """Gold passages among the noise, in their order, at places that depend on the question and not on the level."""
    gold = [passage for passage in sample.passages if passage.gold]
    random = draw(seed, sample)
    places = sorted(random.random() for _ in gold)
    passages = list(noise)
    for place, passage in reversed(list(zip(places, gold, strict=True))):
        passages.insert(int(place * (len(noise) + 1)), passage)
    return sample.with_passages(passages)


STRESS = Stress("noise", "share of noise", "distractors join the gold passages", levels)
