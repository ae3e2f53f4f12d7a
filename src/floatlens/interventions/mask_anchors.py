"""MaskAnchors: hide the anchors from attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from floatlens.interventions.intervention import Intervention, names_of, rule_text, set_fields
from floatlens.interventions.live_anchors import check_leaves_some, draw_others, find_live_anchors
from floatlens.interventions.registry import register_intervention

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState


@register_intervention
@dataclass(frozen=True)
class MaskAnchors(Intervention):
    """The anchors found at each step receive no attention; rows renormalise.

    With a the mean over heads of the attention that positions receive at this layer and step, computed without any
    intervention in this layer, and A = rule(a): the scores of all keys in A become −inf. A query that would not see any
    key still sees itself, such as the first query of a causal model whose first token is an anchor.

    A causal model with a cache finds its anchors again at each step, from the running mean over all queries so far, as a
    trace shows them; the first step masks the anchors of the prompt for all queries of the prompt.

    rule     an anchor rule, such as sigma(3) or top(4)
    layers   layers to change: 3, 0:4, [0, 2], shallow, deep; all by default
    heads    heads that do not see the anchors; all by default. Anchors are found on the mean over all heads
    regions  only anchors inside these regions
    random   a seed: mask the same number of other, random positions instead (the matched control)

    >>> str(MaskAnchors("sigma(3)", layers=slice(0, 4)))
    'mask-anchors(rule=sigma(k=3), layers=0:4)'
    """

    name: ClassVar[str] = "mask-anchors"

    rule: str = "sigma(k=3)"
    layers: Any = None
    heads: Any = None
    regions: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            rule=rule_text(self.rule),
            **self.canonical_places(),
            regions=names_of(self.regions, "region"),
        )

    @property
    def summary(self) -> str:
        within = f" inside {', '.join(self.regions)}" if self.regions else ""
        if self.random is not None:
            return f"As many random positions as {self.rule} finds anchors{within} receive no attention{self.where}."
        return f"The anchors by {self.rule}{within} receive no attention{self.where}."

    def control(self, seed: int) -> MaskAnchors:
        return MaskAnchors(self.rule, self.layers, self.heads, self.regions, seed)

    def begin(self, state: DecodingState) -> None:
        check_leaves_some(self.rule, state)
        if self.regions:
            state.regions_BN(self.regions, everywhere=False)

    def change(self, attention: AttentionCall) -> None:
        chosen, _ = find_live_anchors(attention, self.rule)
        state = attention.state
        if self.regions:
            chosen = chosen & tiled(state.regions_BN(self.regions, everywhere=False), chosen)
        if self.random is not None:
            chosen = draw_others(state, chosen, self.random, attention.layer, state.step)
        if chosen.any():
            attention.hide(chosen, self.heads_in(attention))


def tiled(columns_BN: Any, like: Any) -> Any:
    """Columns of the batch, repeated for the rows of guidance and cut to the positions so far."""
    return np.tile(columns_BN[:, : like.shape[1]], (len(like) // len(columns_BN), 1))
