"""MoveAnchors: move the anchors a few positions further."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from floatlens.interventions.intervention import Intervention, rule_text, set_fields, whole_number
from floatlens.interventions.live_anchors import check_leaves_some, find_live_anchors
from floatlens.interventions.mask_anchors import MaskAnchors
from floatlens.interventions.pin_anchors import LEAST, PinAnchors, relocated
from floatlens.interventions.registry import register_intervention
from floatlens.interventions.scale_attention import ScaleAttention

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState

Array = np.ndarray[Any, Any]


@register_intervention
@dataclass(frozen=True)
class MoveAnchors(Intervention):
    """Each anchor swaps its share of attention with an ordinary position.

    With a_j the received attention (mean over heads and queries) of the layer and step as it would be without any
    intervention in this layer, A = rule(a) its anchors and t(j) the new position of anchor j, attention to key j is
    multiplied by a_t(j) / a_j and attention to key t(j) by a_j / a_t(j); rows are renormalised: the logarithms are added to
    the scores, the same for all heads and queries. Shares below 1e-6 count as 1e-6.

    t(j) is j + by. Anchors are processed from left to right; the last position of a row is followed by its first, and a
    position that is an anchor or already used is skipped. An anchor without a free position stays.

    A causal model with a cache has one query per step; a_j is then the running mean over all queries so far.

    by       number of positions to move by
    rule     an anchor rule
    layers, heads   layers and heads to change; all by default
    random   a seed: apply the factors to random positions that are neither anchors nor their new positions

    >>> str(MoveAnchors(4))
    'move-anchors(by=4, rule=sigma(k=3))'
    """

    name: ClassVar[str] = "move-anchors"

    by: int = 8
    rule: str = "sigma(k=3)"
    layers: Any = None
    heads: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        set_fields(self, by=whole_number(self.by, "by", 1), rule=rule_text(self.rule), **self.canonical_places())

    @property
    def summary(self) -> str:
        if self.random is not None:
            return f"The factors that would move the anchors by {self.by} go to random positions{self.where}."
        return f"The anchors by {self.rule} change places with positions {self.by} further on{self.where}."

    def control(self, seed: int) -> MoveAnchors:
        return replace(self, random=seed)

    def contradicts(self, other: Intervention) -> str:
        if isinstance(other, MaskAnchors):
            return "the anchors cannot be moved and receive nothing"
        if isinstance(other, PinAnchors):
            return "the anchors cannot be held and moved"
        if isinstance(other, MoveAnchors):
            return "anchors can only be moved once"
        if isinstance(other, ScaleAttention) and other.rule is not None:
            return "the anchors cannot be moved and scaled"
        return ""

    def begin(self, state: DecodingState) -> None:
        check_leaves_some(self.rule, state)

    def change(self, attention: AttentionCall) -> None:
        found_RT, a_RT = find_live_anchors(attention, self.rule)
        logs = np.stack([swap(a_T, found_T, self.by) for a_T, found_T in zip(a_RT, found_RT, strict=True)])
        if self.random is not None:
            logs = relocated(attention.state, logs, self.random, attention.layer, attention.state.step)
        if logs.any():
            attention.weigh(logs, self.heads_in(attention))


def swap(a_T: Array, anchors_T: Array, by: int) -> Array:
    """Log factors that swap the shares of each anchor and its new position.

    >>> swap(np.array([0.7, 0.1, 0.1, 0.1]), np.array([True, False, False, False]), 2).round(3)
    array([-1.946,  0.   ,  1.946,  0.   ])
    """
    logs = np.zeros(len(a_T))
    for j, t in new_places(anchors_T, np.isfinite(a_T), by).items():
        logs[t] = np.log(max(a_T[j], LEAST) / max(a_T[t], LEAST))
        logs[j] = -logs[t]
    return logs


def new_places(anchors_T: Array, real_T: Array, by: int) -> dict[int, int]:
    """The new position of each anchor among the real positions of a row.

    >>> new_places(np.array([0, 1, 1, 0, 0], bool), np.array([0, 1, 1, 1, 1], bool), 1)
    {1: 3, 2: 4}
    """
    real = np.flatnonzero(real_T)
    free = {int(t) for t in real if not anchors_T[t]}
    found: dict[int, int] = {}
    for position, j in enumerate(real):
        if not anchors_T[j] or not free:
            continue
        after = (int(real[(position + by + more) % len(real)]) for more in range(len(real)))
        found[int(j)] = next(t for t in after if t in free)
        free.remove(found[int(j)])
    return found
