"""Position, layout, masks and query: where the evidence is among the other passages, and how the question is put.

`position` moves the gold passage (lost in the middle, arXiv 2307.03172). `layout` arranges the pieces of multi-hop evidence:
together, k passages apart, together in reverse order, or shuffled. Its axis is the distance; the reversed and the shuffled
layouts have no value on it. `masks` is the number of mask tokens that a masked diffusion model is given to fill; for an
autoregressive model the same numbers are the maximum number of new tokens. `query` puts the question after the passages,
before them, or on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Passage, Sample, move_gold
from floatlens.data.template import ORDERS
from floatlens.errors import FloatLensError
from floatlens.evaluation.stress.stress import StressLevel, StressOptions, draw, register_stress, with_gold

MOST = 11  # default maximum number of positions
NAN = float("nan")
MASKS = (8, 16, 32, 64)
NAMES = {"last": "after", "first": "before", "both": "both"}  # of positions of the question


@register_stress(
    "position", axis="position of the gold passage", about="the gold passage at each position", priority=40
)
def position_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
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
        StressLevel(str(position), float(position), [move_gold(sample, position, count) for sample in usable])
        for position in positions
    ]


def _spread(count: int) -> list[int]:
    if count <= MOST:
        return list(range(count))
    return [round(i * (count - 1) / (MOST - 1)) for i in range(MOST)]


@register_stress(
    "layout",
    axis="passages between the evidence",
    about="multi-hop evidence together or apart",
    priority=30,
)
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
    for i, piece in enumerate(gold):
        passages.append(piece)
        if i < len(gold) - 1:
            passages += others[at : at + k]
            at += k
    return sample.with_passages(passages + others[at:])


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


@register_stress("masks", axis="mask tokens appended", about="more mask tokens than the answer needs", priority=20)
def mask_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Ask with each number of mask tokens."""
    counts = sorted(set(options.values or MASKS))
    if counts[0] < 1:
        raise FloatLensError(f"{counts[0]} mask tokens cannot hold an answer; use numbers from 1 in --levels")
    return [StressLevel(str(count), float(count), list(samples), {"max_new_tokens": count}) for count in counts]


@register_stress(
    "query", axis="position of the question", about="the question after, before, or on both sides", priority=10
)
def query_levels(samples: Sequence[Sample], options: StressOptions) -> list[StressLevel]:
    """Ask with the question at each position."""
    return [StressLevel(NAMES[order], NAN, list(samples), {"order": order}) for order in ORDERS]
