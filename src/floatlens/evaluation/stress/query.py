"""Query: does it matter whether the question stands after the passages, before them, or on both sides?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floatlens.data.sample import Sample
from floatlens.data.template import ORDERS
from floatlens.evaluation.evaluate import Asking
from floatlens.evaluation.stress.level import Level, Options, Stress

NAMES = {"last": "after", "first": "before", "both": "both"}


def levels(samples: Sequence[Sample], asking: Asking, options: Options) -> list[Level]:
    return [Level(NAMES[order], float("nan"), list(samples), replace(asking, order=order)) for order in ORDERS]


STRESS = Stress("query", "place of the question", "the question after, before, or on both sides", levels)
