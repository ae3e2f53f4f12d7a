"""Layout: does it matter how the pieces of multi-hop evidence lie to each other?

Together, apart by k passages, together in reverse order, or anywhere. The axis is the distance; the reversed and the
shuffled layouts have no place on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import Asking
from floatlens.evaluation.stress.level import Level, Options, Stress, draw, with_gold

NAN = float("nan")


def levels(samples: Sequence[Sample], asking: Asking, options: Options) -> list[Level]:
    usable = [_cut(sample, options.passages) for sample in with_gold(samples, 2, "layout")]
    widest = min((len(s.passages) - len(s.gold)) // (len(s.gold) - 1) for s in usable)
    wanted = options.values if options.values is not None else tuple(k for k in (1, 2, 4, 8) if k <= widest)
    for k in wanted:
        if not 1 <= k <= widest:
            raise FloatLensError(f"evidence cannot lie {k} passages apart in all questions; use 1 to {widest}")
    made = [Level("together", 0.0, [spaced(s, 0) for s in usable], asking)]
    made += [Level(f"apart {k}", float(k), [spaced(s, k) for s in usable], asking) for k in sorted(set(wanted))]
    made.append(Level("reversed", NAN, [spaced(s, 0, reverse=True) for s in usable], asking))
    made.append(Level("shuffled", NAN, [_shuffled(s, options.seed) for s in usable], asking))
    return made


def spaced(sample: Sample, k: int, reverse: bool = False) -> Sample:
    """Evidence with k other passages between neighbours, in the middle of the rest.

    >>> texts = [Passage(t, gold=t in "GH") for t in "GHabcd"]
    >>> ["".join(p.text for p in spaced(Sample("1", "Q?", ["x"], texts), k).passages) for k in (0, 1, 4)]
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


def _shuffled(sample: Sample, seed: int) -> Sample:
    passages = list(sample.passages)
    draw(seed, sample).shuffle(passages)
    return sample.with_passages(passages)


def _cut(sample: Sample, count: int | None) -> Sample:
    if count is None:
        return sample
    room = max(0, count - len(sample.gold))
    others = {id(p) for p in [p for p in sample.passages if not p.gold][:room]}
    return sample.with_passages([p for p in sample.passages if p.gold or id(p) in others])


STRESS = Stress(
    "layout", "passages between the pieces of evidence", "multi-hop evidence lies together or apart", levels
)
