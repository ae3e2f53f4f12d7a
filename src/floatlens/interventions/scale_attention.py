"""ScaleAttention: scale attention to chosen positions, or all scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, number, rule_text, set_fields, setting_text
from floatlens.interventions.live_anchors import draw_others, find_live_anchors
from floatlens.interventions.mask_anchors import MaskAnchors
from floatlens.interventions.mask_positions import MaskPositions
from floatlens.interventions.registry import register_intervention
from floatlens.interventions.target_positions import (
    canonical_target,
    check_target,
    describe_target,
    same_target,
    target_columns,
)

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState


@register_intervention
@dataclass(frozen=True)
class ScaleAttention(Intervention):
    """Multiply attention to chosen positions by a factor and renormalise rows; without a choice, multiply all scores.

    For chosen positions, the log of the factor is added to the scores of their columns, which multiplies their attention
    before the row is renormalised. Without a choice, a common factor on all weights would have no effect after
    renormalisation, so the scores themselves are multiplied: above 1 attention gets sharper, below 1 flatter.

    factor     above 0; 0 would be mask-positions
    positions, region, kind   as in mask-positions
    rule       the anchors by this rule
    layers, heads   layers and heads to change; all by default
    random     a seed: the same number of other, random positions instead of the chosen ones (the matched control)

    >>> str(ScaleAttention(0.5, region="gold")), ScaleAttention(2).summary
    ('scale-attention(factor=0.5, region=gold)', 'All scores are multiplied by 2.')
    """

    name: ClassVar[str] = "scale-attention"

    factor: float
    positions: Any = None
    region: Any = None
    kind: Any = None
    rule: Any = None
    layers: Any = None
    heads: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            factor=number(self.factor, "factor"),
            **canonical_target(self),
            rule=None if self.rule is None else rule_text(self.rule),
            **self.canonical_places(),
        )
        check_target(self, at_least=0, also=("rule",))
        if self.factor <= 0:
            raise FloatLensError(
                f"factor {setting_text(self.factor)} should be above 0; to remove all attention use mask-positions"
            )
        if self.random is not None and not self.chooses:
            raise FloatLensError("random needs positions to match; pass positions, a region, a kind or a rule")

    @property
    def chooses(self) -> bool:
        """Whether it acts on some positions only."""
        return any(x is not None for x in (self.positions, self.region, self.kind, self.rule))

    @property
    def summary(self) -> str:
        if not self.chooses:
            return f"All scores are multiplied by {setting_text(self.factor)}{self.where}."
        what = f"the anchors by {self.rule}" if self.rule is not None else describe_target(self)
        what = f"as many random positions as {what}" if self.random is not None else what
        return f"Attention to {what} is multiplied by {setting_text(self.factor)}{self.where}."

    def control(self, seed: int) -> ScaleAttention | None:
        if not self.chooses:
            return None
        what = (self.positions, self.region, self.kind, self.rule)
        return ScaleAttention(self.factor, *what, self.layers, self.heads, seed)

    def contradicts(self, other: Intervention) -> str:
        if isinstance(other, ScaleAttention) and same_target(self, other):
            return "the same attention has two factors"
        if isinstance(other, MaskAnchors | MaskPositions) and self.chooses and same_target(self, other):
            return "what receives no attention cannot be scaled"
        return ""

    def begin(self, state: DecodingState) -> None:
        if self.positions is not None or self.region is not None:
            target_columns(self, state)

    def change(self, attention: AttentionCall) -> None:
        heads = self.heads_in(attention)
        if not self.chooses:
            attention.sharpen(self.factor, heads)
            return
        state = attention.state
        parts: tuple[int, ...] = ()
        if self.rule is not None:
            columns, _ = find_live_anchors(attention, self.rule)
            parts = (attention.layer, state.step)
        else:
            columns = target_columns(self, state)[:, : state.length]
        if self.random is not None:
            columns = draw_others(state, columns, self.random, *parts)
        if columns.any():
            attention.weigh(np.where(columns, math.log(self.factor), 0.0), heads)
