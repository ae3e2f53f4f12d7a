"""Masks: does the number of mask tokens that a diffusion model is given to fill change its answer?

An autoregressive model gets the same numbers as the most that it may write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import Asking
from floatlens.evaluation.stress.level import Level, Options, Stress

COUNTS = (8, 16, 32, 64)


def levels(samples: Sequence[Sample], asking: Asking, options: Options) -> list[Level]:
    counts = sorted(set(options.values or COUNTS))
    if counts[0] < 1:
        raise FloatLensError(f"{counts[0]} mask tokens cannot hold an answer; give numbers from 1")
    made = []
    for count in counts:
        # A fixed number of steps is kept where it can be: no step may be left without a token.
        steps = None if asking.steps is None else min(asking.steps, count)
        made.append(Level(str(count), float(count), list(samples), replace(asking, max_new_tokens=count, steps=steps)))
    return made


STRESS = Stress("masks", "mask tokens appended", "more mask tokens than the answer needs", levels)
