"""Position: the position of the gold passage among the others (lost in the middle, arXiv 2307.03172)."""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import Asking
from floatlens.evaluation.stress.stress import StressLevel, StressOptions, register_stress, with_gold

MOST = 11  # default maximum number of positions


@register_stress(
    "position", axis="position of the gold passage", about="the gold passage at each position", priority=40
)
def levels(samples: Sequence[Sample], asking: Asking, options: StressOptions) -> list[StressLevel]:
    """Put the gold passage at each position among the same other passages."""
    usable = with_gold(samples, 1, "position")
    count = options.passages or min(len(sample.passages) for sample in usable)
    usable = [sample for sample in usable if len(sample.passages) >= count > len(sample.gold)]
    if not usable:
        raise FloatLensError(f"no question has its gold passage among {count} passages; use fewer with --passages")
    positions = sorted(set(options.values if options.values is not None else _spread(count)))
    for position in positions:
        if not 0 <= position < count:
            raise FloatLensError(
                f"gold position {position} in --levels is out of range; there are {count} passages, counted from 0"
            )
    return [
        StressLevel(str(position), float(position), [move_gold(sample, position, count) for sample in usable], asking)
        for position in positions
    ]


def move_gold(sample: Sample, position: int, count: int) -> Sample:
    """Return the question with its gold passages next to each other from `position` on, among the first others.

    >>> from floatlens.data.sample import Passage
    >>> sample = Sample("1", "Q?", ["a"], [Passage("g", gold=True), Passage("x"), Passage("y")])
    >>> [p.text for p in move_gold(sample, 1, 3).passages]
    ['x', 'g', 'y']
    """
    gold = [p for p in sample.passages if p.gold]
    others = [p for p in sample.passages if not p.gold][: count - len(gold)]
    at = min(position, len(others))
    return sample.with_passages(others[:at] + gold + others[at:])


def _spread(count: int) -> list[int]:
    if count <= MOST:
        return list(range(count))
    return [round(i * (count - 1) / (MOST - 1)) for i in range(MOST)]
