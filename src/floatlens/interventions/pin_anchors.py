"""PinAnchors: stop the anchors from floating. They stay where they were at one step, or in one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, rule_text, set_fields, whole_number
from floatlens.interventions.live_anchors import check_leaves_some, draw_others, find_live_anchors
from floatlens.interventions.mask_anchors import MaskAnchors
from floatlens.interventions.registry import register_intervention
from floatlens.interventions.scale_attention import ScaleAttention

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState

Array = np.ndarray[Any, Any]
LEAST = 1e-6  # the smallest share, so that factors stay finite
STEPS, LAYERS = "steps", "layers"


@register_intervention
@dataclass(frozen=True)
class PinAnchors(Intervention):
    """The anchors of one step (or of one layer) keep their share; other anchors are reduced to the level of the rest.

    Row by row and layer by layer, with a_j the received attention (mean over heads and queries) of the step as it would
    be without any intervention in this layer, A = rule(a) its anchors, P the anchors of the pinned step, p_j the share
    that they received then, and m the mean of a_j over positions in neither A nor P, attention to key j is multiplied by

        f_j = p_j / a_j   for j in P          the anchors of the pinned step keep the share that they had
        f_j = m / a_j     for j in A, not P   later anchors are reduced to the level of ordinary positions
        f_j = 1           elsewhere

    and rows are renormalised: log f_j is added to the scores of column j, the same for all heads and queries. Shares
    below 1e-6 count as 1e-6. The pinned step and those before it are not changed.

    A step is a forward pass. A causal model with a cache reads its prompt in step 0 and has one query in every later
    one; a_j is then the running mean over all queries so far, as a trace shows it.

    With across="layers" the anchors may float over steps, but all layers share one set: at each forward pass, P and
    p_j are the anchors and shares of the first of `layers` that computes attention, which is not changed, and the factors
    above act in the layers after it.

    step     the step whose anchors are held, for across="steps"
    rule     an anchor rule
    layers, heads   layers and heads to change; all by default
    random   a seed: apply the factors to random positions that are in neither set (the matched control)
    across   steps: the anchors of `step` are held at later steps, layer by layer; layers: those of the first layer are held
             in later layers, step by step

    >>> str(PinAnchors(step=2)), str(PinAnchors(across="layers"))
    ('pin-anchors(step=2, rule=sigma(k=3))', 'pin-anchors(rule=sigma(k=3), across=layers)')
    """

    name: ClassVar[str] = "pin-anchors"

    step: int = 0
    rule: str = "sigma(k=3)"
    layers: Any = None
    heads: Any = None
    random: int | None = None
    across: str = STEPS

    def __post_init__(self) -> None:
        set_fields(
            self,
            step=whole_number(self.step, "step"),
            rule=rule_text(self.rule),
            **self.canonical_places(),
        )
        if self.across not in (STEPS, LAYERS):
            raise FloatLensError(f"across={self.across} is not known; use steps or layers")
        if self.across == LAYERS and self.step:
            raise FloatLensError(f"step={self.step} belongs to across=steps; with across=layers every step is pinned")

    @property
    def summary(self) -> str:
        of = f"of step {self.step}" if self.across == STEPS else "of the first layer"
        if self.random is not None:
            return f"The factors that would pin the anchors {of} go to random positions{self.where}."
        held = f"where they were at step {self.step}" if self.across == STEPS else "where the first layer has them"
        return f"The anchors by {self.rule} are held {held}{self.where}."

    def control(self, seed: int) -> PinAnchors:
        return replace(self, random=seed)

    def contradicts(self, other: Intervention) -> str:
        if isinstance(other, MaskAnchors):
            return "the anchors cannot keep their share and receive nothing"
        if isinstance(other, PinAnchors):
            return "anchors can only be held once, by one rule"
        if isinstance(other, ScaleAttention) and other.rule is not None:
            return "the anchors cannot keep their share and be scaled"
        return ""

    def begin(self, state: DecodingState) -> None:
        check_leaves_some(self.rule, state)

    def change(self, attention: AttentionCall) -> None:
        state, layer = attention.state, attention.layer
        found_RT, a_RT = find_live_anchors(attention, self.rule)
        if state.step < self.step:
            return
        pinned = ("pinned", self, layer if self.across == STEPS else None)
        before = state.notes.get(pinned)
        # Layers ascend within a pass: one that does not lie above the pinned layer begins a new pass.
        if before is None or (self.across == LAYERS and layer <= before[0]):
            state.notes[pinned] = (layer, found_RT, np.where(found_RT, a_RT, 0.0))
            return
        logs = np.log(factors(a_RT, found_RT, *(grown(x, a_RT) for x in before[1:])))
        if self.random is not None:
            logs = relocated(state, logs, self.random, layer, state.step)
        if logs.any():
            attention.weigh(logs, self.heads_in(attention))


def factors(a_RT: Array, now_RT: Array, pinned_RT: Array, share_RT: Array) -> Array:
    """The factor of attention to each column; 1 on padding (NaN).

    >>> a = np.array([[0.1, 0.1, 0.6, 0.2]])
    >>> factors(a, np.array([[0, 0, 1, 0]], bool), np.array([[0, 0, 0, 1]], bool), np.array([[0, 0, 0, 0.5]])).round(3)
    array([[1.   , 1.   , 0.167, 2.5  ]])
    """
    ordinary = ~now_RT & ~pinned_RT & np.isfinite(a_RT)
    level = np.where(ordinary, a_RT, 0.0).sum(1, keepdims=True) / np.maximum(ordinary.sum(1, keepdims=True), 1)
    a = np.maximum(np.nan_to_num(a_RT, nan=1.0), LEAST)
    pressed = np.where(now_RT & ~pinned_RT, np.maximum(level, LEAST) / a, 1.0)
    return np.where(pinned_RT, np.maximum(share_RT, LEAST) / a, pressed)


def grown(before_RT: Array, like_RT: Array) -> Array:
    """The array extended by columns for new positions, which are not pinned anchors."""
    return np.pad(before_RT, ((0, 0), (0, like_RT.shape[1] - before_RT.shape[1])))


def relocated(state: DecodingState, logs_RT: Array, seed: int, *parts: int) -> Array:
    """The same factors at other, random columns."""
    changed = logs_RT != 0
    positions = draw_others(state, changed, seed, *parts)
    out = np.zeros_like(logs_RT)
    for row in range(len(out)):
        there = np.flatnonzero(positions[row])
        out[row, there] = logs_RT[row, changed[row]][: len(there)]
    return out
