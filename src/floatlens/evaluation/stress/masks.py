"""Masks: the number of mask tokens that a masked diffusion model is given to fill.

For an autoregressive model the same numbers are the maximum number of new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.planning import Asking
from floatlens.evaluation.stress.stress import StressLevel, StressOptions, register_stress

COUNTS = (8, 16, 32, 64)


@register_stress("masks", axis="mask tokens appended", about="more mask tokens than the answer needs", priority=20)
def levels(samples: Sequence[Sample], asking: Asking, options: StressOptions) -> list[StressLevel]:
    """Ask with each number of mask tokens."""
    counts = sorted(set(options.values or COUNTS))
    if counts[0] < 1:
        raise FloatLensError(f"{counts[0]} mask tokens cannot hold an answer; use numbers from 1 in --levels")
    made = []
    for count in counts:
        # A fixed number of steps is kept if possible: no step may be left without a token.
        steps = None if asking.steps is None else min(asking.steps, count)
        longer = replace(asking, max_new_tokens=count, steps=steps)
        made.append(StressLevel(str(count), float(count), list(samples), longer))
    return made
