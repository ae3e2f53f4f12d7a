"""Massive activations: the norm of each hidden state, its largest channel, and how far that stands out.

Few channels of few positions can be thousands of times as large as the rest (arXiv 2402.17762). The median is that of the
position's own state, so that the number depends neither on the batch nor on a cache.
"""

from __future__ import annotations

import torch

from floatlens.attention.hidden import Hidden, HiddenStatistic
from floatlens.attention.registry import register_statistic


@register_statistic
class HiddenNorm(HiddenStatistic):
    """Norm of the state after the layer."""

    name = "hidden_norm"
    dims = ("position",)

    def of(self, hidden: Hidden) -> torch.Tensor:
        return self.kept(hidden, hidden.h.norm(dim=-1))


@register_statistic
class MassiveRatio(HiddenStatistic):
    """Largest absolute activation of the state over the median of its absolute activations."""

    name = "massive_ratio"
    dims = ("position",)

    def of(self, hidden: Hidden) -> torch.Tensor:
        size = hidden.h.abs()
        return self.kept(hidden, size.amax(-1) / size.median(-1).values)


@register_statistic
class MassiveChannel(HiddenStatistic):
    """Number of the channel with the largest absolute activation."""

    name = "massive_channel"
    dims = ("position",)
    whole = True

    def of(self, hidden: Hidden) -> torch.Tensor:
        return self.kept(hidden, hidden.h.abs().argmax(-1).float())
