"""Which of its passages a question is shown with."""

from __future__ import annotations

from floatlens.data.sample import Passage, Sample


def gold_among(sample: Sample, count: int) -> Sample:
    """The gold passages and the first others, `count` in all, in their order: for data that bring their own passages.

    >>> from floatlens.data.sample import Passage
    >>> sample = Sample("1", "Q?", ["a"], [Passage("x"), Passage("y"), Passage("z", gold=True)])
    >>> [p.text for p in gold_among(sample, 2).passages]
    ['x', 'z']
    """
    others = max(0, count - len(sample.gold))
    kept: list[Passage] = []
    for passage in sample.passages:
        if passage.gold and len(kept) < count:
            kept.append(passage)
        elif not passage.gold and others:
            kept.append(passage)
            others -= 1
    return sample.with_passages(kept)


def first(sample: Sample, count: int) -> Sample:
    """The first `count` passages, as a retriever ranked them, whether gold or not."""
    return sample.with_passages(sample.passages[:count])
