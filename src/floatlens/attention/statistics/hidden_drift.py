"""Drift of hidden states: how much the state of each position changes from one step to the next, after each layer."""

from __future__ import annotations

from typing import ClassVar

import torch

from floatlens.attention.change import compare_with_last
from floatlens.attention.hidden import Hidden, HiddenStatistic
from floatlens.attention.registry import register_statistic


@register_statistic
class HiddenChange(HiddenStatistic):
    """|h − h'| / |h'| with the state h' of the previous step; NaN if the position was not computed at both steps."""

    name = "hidden_change"
    dims = ("position",)
    compares = True
    number: ClassVar[int] = 0

    def of(self, hidden: Hidden) -> torch.Tensor:
        key = (self.name, hidden.layer)
        active = hidden.h[:, hidden.active_rows]
        return compare_with_last(hidden.memory, key, hidden.active.start, active, hidden.length)[:, self.number]


@register_statistic
class HiddenCosine(HiddenChange):
    """Cosine of a state with the state of the previous step."""

    name = "hidden_cos"
    number = 1
