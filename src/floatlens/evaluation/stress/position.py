"""Position: does it matter where the gold passage stands? (lost in the middle, arXiv 2307.03172)"""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import Asking
from floatlens.evaluation.stress.level import Level, Options, Stress, with_gold

MOST = 11  # places tried unless told otherwise


def levels(samples: Sequence[Sample], asking: Asking, options: Options) -> list[Level]:
    usable = with_gold(samples, 1, "position")
    count = options.passages or min(len(sample.passages) for sample in usable)
    usable = [sample for sample in usable if len(sample.passages) >= count > len(sample.gold)]
    if not usable:
        raise FloatLensError(f"no question has gold among {count} passages; ask for fewer with --passages")
    places = sorted(set(options.values if options.values is not None else _spread(count)))
    for place in places:
        if not 0 <= place < count:
            raise FloatLensError(f"gold position {place} is out of range; there are {count} passages, counted from 0")
    return [Level(str(p), float(p), [moved(sample, p, count) for sample in usable], asking) for p in places]


def moved(sample: Sample, place: int, count: int) -> Sample:
    """The gold passages side by side from `place` on (or as far back as they fit), among the first others.

    >>> from floatlens.data.sample import Passage
    >>> sample = Sample("1", "Q?", ["a"], [Passage("g", gold=True), Passage("x"), Passage("y")])
    >>> [p.text for p in moved(sample, 1, 3).passages]
    ['x', 'g', 'y']
    """
    gold = [p for p in sample.passages if p.gold]
    others = [p for p in sample.passages if not p.gold][: count - len(gold)]
    at = min(place, len(others))
    return sample.with_passages(others[:at] + gold + others[at:])


def _spread(count: int) -> list[int]:
    if count <= MOST:
        return list(range(count))
    return [round(i * (count - 1) / (MOST - 1)) for i in range(MOST)]


STRESS = Stress("position", "place of the gold passage", "the gold passage stands at each place", levels)
