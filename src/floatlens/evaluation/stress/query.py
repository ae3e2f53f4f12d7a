"""Query: the position of the question, after the passages, before them, or on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floatlens.data.sample import Sample
from floatlens.data.template import ORDERS
from floatlens.evaluation.planning import Asking
from floatlens.evaluation.stress.stress import StressLevel, StressOptions, register_stress

NAMES = {"last": "after", "first": "before", "both": "both"}


@register_stress(
    "query", axis="position of the question", about="the question after, before, or on both sides", priority=10
)
def levels(samples: Sequence[Sample], asking: Asking, options: StressOptions) -> list[StressLevel]:
    """Ask with the question at each position."""
    return [StressLevel(NAMES[order], float("nan"), list(samples), replace(asking, order=order)) for order in ORDERS]
