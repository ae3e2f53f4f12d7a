"""The interventions on attention weights: mask, pin, move, scale, cap, add a sink.

docs/interventions.md defines each. The settings layers, heads and random are those of `Intervention`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from floatlens.errors import FloatLensError, check_known
from floatlens.interventions.intervention import Array, Intervention, Shape, register_intervention, whole_number

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from floatlens.interventions.attention_call import AttentionCall, DecodingState

LEAST = 1e-6  # the smallest share of received attention, so that factors stay finite
STEPS, LAYERS = "steps", "layers"


@register_intervention
@dataclass(frozen=True)
class MaskAnchors(Intervention):
    """The anchors found at each step receive no attention; rows renormalise.

    rule     an anchor rule, such as sigma(3) or top(4)
    regions  only anchors inside these regions

    >>> str(MaskAnchors("sigma(3)", layers=slice(0, 4)))
    'mask-anchors(rule=sigma(k=3), layers=0:4)'
    """

    name: ClassVar[str] = "mask-anchors"
    effect: ClassVar[str] = "receive nothing"
    log_factor: ClassVar[float] = -math.inf

    rule: str = "sigma(k=3)"
    layers: Any = None
    heads: Any = None
    regions: Any = None
    random: int | None = None


@register_intervention
@dataclass(frozen=True)
class MaskPositions(Intervention):
    """Named positions receive no attention; rows renormalise.

    Exactly one of `positions`, `region` and `kind` selects them:

    positions  0, 0:4 or [0, 7], counted from the prompt's first token
    region     bos, instruction, query, doc2, answer; gold (the gold documents), docs, prompt, template (in no region)
    kind       the kind of the token at the current step: punctuation, newline, special, mask, template,
               function, number, name, content; structural or lexical for a group of them

    >>> str(MaskPositions(kind="punctuation"))
    'mask-positions(kind=punctuation)'
    """

    name: ClassVar[str] = "mask-positions"
    effect: ClassVar[str] = MaskAnchors.effect
    log_factor: ClassVar[float] = -math.inf

    positions: Any = None
    region: Any = None
    kind: Any = None
    layers: Any = None
    heads: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.place:
            raise self.needs_place("none is given")
        if self.positions in (":", "0:"):
            raise FloatLensError(f"positions={self.positions} is every position; leave at least one position visible")

    def begin(self, state: DecodingState) -> None:
        super().begin(state)
        if self.kind is None:
            [(way, value)] = self.place.items()
            hidden_BN = state.columns(way, value) | ~state.real_BN()
            if bool(hidden_BN[:, : state.length].all(axis=1).any()):
                raise FloatLensError(f"{self} masks every position of a prompt; leave at least one position visible")


@register_intervention
@dataclass(frozen=True)
class PinAnchors(Intervention):
    """The anchors of one step (or of one layer) keep their share; other anchors are reduced to the level of the rest.

    step     the step whose anchors are held, for across="steps"
    rule     an anchor rule
    across   steps: the anchors of `step` are held at later steps, layer by layer; layers: at each pass, the anchors of
             the first of `layers` are held in the layers after it

    >>> str(PinAnchors(step=2)), str(PinAnchors(across="layers"))
    ('pin-anchors(step=2, rule=sigma(k=3))', 'pin-anchors(rule=sigma(k=3), across=layers)')
    """

    name: ClassVar[str] = "pin-anchors"
    effect: ClassVar[str] = "keep their share"
    once: ClassVar[str] = "anchors can only be held once, by one rule"
    all_anchors: ClassVar[bool] = True

    step: int = 0
    rule: str = "sigma(k=3)"
    layers: Any = None
    heads: Any = None
    random: int | None = None
    across: str = STEPS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("across", self.across, (STEPS, LAYERS))
        if self.across == LAYERS and self.step:
            raise FloatLensError(f"step={self.step} belongs to across=steps; with across=layers every step is pinned")

    def log_factors(self, attention: AttentionCall) -> Array:
        state, layer = attention.state, attention.layer
        anchors_RT, a_RT = attention.anchors(self.rule)
        if state.step < self.step:
            return np.zeros_like(a_RT)
        key = ("pinned", self, layer if self.across == STEPS else None)
        before = state.notes.get(key)
        # Layers ascend within a pass: one that does not lie above the pinned layer begins a new pass.
        if before is None or (self.across == LAYERS and layer <= before[0]):
            state.notes[key] = (layer, anchors_RT, np.where(anchors_RT, a_RT, 0.0))
            return np.zeros_like(a_RT)
        new = a_RT.shape[1] - before[1].shape[1]  # positions written since then are not pinned
        pinned_RT, share_RT = (np.pad(x, ((0, 0), (0, new))) for x in before[1:])
        return np.log(pin_factors(a_RT, anchors_RT, pinned_RT, share_RT))


@register_intervention
@dataclass(frozen=True)
class MoveAnchors(Intervention):
    """Each anchor swaps its share of attention with an ordinary position.

    by       number of positions to move by; positions that are anchors or already used are skipped
    rule     an anchor rule

    >>> str(MoveAnchors(4))
    'move-anchors(by=4, rule=sigma(k=3))'
    """

    name: ClassVar[str] = "move-anchors"
    effect: ClassVar[str] = "be moved"
    once: ClassVar[str] = "anchors can only be moved once"
    all_anchors: ClassVar[bool] = True

    by: int = 8
    rule: str = "sigma(k=3)"
    layers: Any = None
    heads: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.by, "by", 1)

    def log_factors(self, attention: AttentionCall) -> Array:
        anchors_RT, a_RT = attention.anchors(self.rule)
        return np.stack([swap(a_T, anchors_T, self.by) for a_T, anchors_T in zip(a_RT, anchors_RT, strict=True)])


@register_intervention
@dataclass(frozen=True)
class ScaleAttention(Intervention):
    """Multiply attention to chosen positions by a factor and renormalise rows; without a choice, multiply all scores.

    factor     above 0; 0 would be mask-positions. On all scores, above 1 attention gets sharper, below 1 flatter
    positions, region, kind   as in mask-positions
    rule       the anchors by this rule

    >>> str(ScaleAttention(0.5, region="gold"))
    'scale-attention(factor=0.5, region=gold)'
    """

    name: ClassVar[str] = "scale-attention"
    effect: ClassVar[str] = "be scaled"
    once: ClassVar[str] = "the same attention has two factors"

    factor: float
    positions: Any = None
    region: Any = None
    kind: Any = None
    rule: Any = None
    layers: Any = None
    heads: Any = None
    random: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor <= 0:
            raise FloatLensError(
                f"factor {self.factor:g} should be above 0; to remove all attention use mask-positions"
            )
        if self.random is not None and not self.place:
            raise FloatLensError("random needs positions to match; pass positions, a region, a kind or a rule")

    @property
    def log_factor(self) -> float:  # type: ignore[override]
        return math.log(self.factor)

    def change(self, attention: AttentionCall) -> None:
        if self.place:
            super().change(attention)
        else:
            attention.sharpen(self.factor, self.heads_in(attention))


@register_intervention
@dataclass(frozen=True)
class SoftCap(Intervention):
    """Limit scores smoothly by a cap: cap · tanh(score / cap), as Gemma 2 does (arXiv 2408.00118).

    cap      above 0; small caps make attention nearly uniform

    >>> str(SoftCap(5, layers="deep"))
    'soft-cap(cap=5, layers=deep)'
    """

    name: ClassVar[str] = "soft-cap"
    once: ClassVar[str] = "a layer can only have one cap"

    cap: float = 10.0
    layers: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap <= 0:
            raise FloatLensError(f"cap {self.cap:g} should be above 0; a small cap makes attention nearly uniform")

    def check(self, shape: Shape, config: PreTrainedConfig) -> None:
        super().check(shape, config)
        if own := getattr(config, "attn_logit_softcapping", None):
            raise FloatLensError(f"the model caps its scores at {own} itself; soft-cap would cap them twice")

    def change(self, attention: AttentionCall) -> None:
        attention.cap(self.cap)


@register_intervention
@dataclass(frozen=True)
class AddSink(Intervention):
    """Add an extra token that only absorbs attention: it has a score for every query and no value.

    After the sink token of arXiv 2601.19657, here without training. A trace shows the weights of real positions, so
    received attention sums to less than 1.

    score    the sink's score, on the scale of the scores that the softmax sees

    >>> str(AddSink(2))
    'add-sink(score=2)'
    """

    name: ClassVar[str] = "add-sink"
    once: ClassVar[str] = "a layer can only have one extra sink"

    score: float = 0.0
    layers: Any = None
    heads: Any = None

    def change(self, attention: AttentionCall) -> None:
        attention.absorb(self.score, self.heads_in(attention))


def pin_factors(a_RT: Array, now_RT: Array, pinned_RT: Array, share_RT: Array) -> Array:
    """The factor of attention to each column; 1 on padding (NaN)."""
    ordinary = ~now_RT & ~pinned_RT & np.isfinite(a_RT)
    level = np.where(ordinary, a_RT, 0.0).sum(1, keepdims=True) / np.maximum(ordinary.sum(1, keepdims=True), 1)
    a = np.maximum(np.nan_to_num(a_RT, nan=1.0), LEAST)
    reduced = np.where(now_RT & ~pinned_RT, np.maximum(level, LEAST) / a, 1.0)
    return np.where(pinned_RT, np.maximum(share_RT, LEAST) / a, reduced)


def swap(a_T: Array, anchors_T: Array, by: int) -> Array:
    """Log factors that swap the shares of each anchor and the position `by` further on.

    >>> swap(np.array([0.7, 0.1, 0.1, 0.1]), np.array([True, False, False, False]), 2).round(3)
    array([-1.946,  0.   ,  1.946,  0.   ])
    """
    logs_T, real = np.zeros(len(a_T)), np.flatnonzero(np.isfinite(a_T))
    free = {int(t) for t in real if not anchors_T[t]}
    for index, j in enumerate(real):
        if not anchors_T[j] or not free:
            continue
        after = (int(real[(index + by + more) % len(real)]) for more in range(len(real)))
        t = next(t for t in after if t in free)
        free.remove(t)
        logs_T[t] = np.log(max(a_T[j], LEAST) / max(a_T[t], LEAST))
        logs_T[j] = -logs_T[t]
    return logs_T
