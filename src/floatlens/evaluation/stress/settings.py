"""Masks and query: how the question is put.

`masks` is the number of mask tokens that a masked diffusion model is given to fill; for an autoregressive model the same
numbers are the maximum number of new tokens. `query` puts the question after the passages, before them, or on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatlens.data.sample import Sample
from floatlens.data.template import ORDERS
from floatlens.errors import FloatLensError
from floatlens.evaluation.stress.stress import StressLevel, StressOptions, register_stress

MASKS = (8, 16, 32, 64)
NAMES = {"last": "after", "first": "before", "both": "both"}


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
    return [StressLevel(NAMES[order], float("nan"), list(samples), {"order": order}) for order in ORDERS]
