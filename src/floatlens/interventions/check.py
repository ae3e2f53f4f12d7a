"""Interventions that cannot work together, or on this model: refused before a weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.interventions.ablate_heads import AblateHeads
from floatlens.interventions.add_sink import AddSink
from floatlens.interventions.intervention import Intervention, Shape
from floatlens.interventions.mask_anchors import MaskAnchors
from floatlens.interventions.mask_positions import MaskPositions
from floatlens.interventions.pin_anchors import PinAnchors
from floatlens.interventions.scale_attention import ScaleAttention
from floatlens.interventions.soft_cap import SoftCap


def check(interventions: Sequence[Intervention], shape: Shape, config: Any) -> None:
    """Refuse layers and heads that do not exist, and interventions that contradict each other where they meet."""
    for one in interventions:
        one.check(shape, config)
    for one, other in combinations(interventions, 2):
        reason = contradiction(one, other)
        if reason and _meet(one, other, shape):
            raise FloatLensError(f"{one} and {other} contradict each other: {reason}; use one of them, or other layers")


def _meet(one: Intervention, other: Intervention, shape: Shape) -> bool:
    layers = set(one.layer_numbers(shape)) & set(other.layer_numbers(shape))
    return bool(layers and set(one.head_numbers(shape)) & set(other.head_numbers(shape)))


def contradiction(one: Intervention, other: Intervention) -> str:
    """Why two interventions contradict each other in a layer that they share; empty when they do not.

    >>> contradiction(SoftCap(5), SoftCap(10))
    'a layer has one cap'
    >>> contradiction(SoftCap(5), AddSink())
    ''
    """
    if one == other:
        return "it is given twice"
    if isinstance(one, SoftCap) and isinstance(other, SoftCap):
        return "a layer has one cap"
    if isinstance(one, AddSink) and isinstance(other, AddSink):
        return "a layer has one extra sink"
    if isinstance(one, AblateHeads) and isinstance(other, AblateHeads):
        return "a head has one filling" if one.fill != other.fill else ""
    kinds = (type(one), type(other))
    if PinAnchors in kinds:
        if MaskAnchors in kinds:
            return "the anchors cannot keep their share and receive nothing"
        if kinds[0] is kinds[1]:
            return "anchors can be held at one step, by one rule"
        if any(isinstance(x, ScaleAttention) and x.rule is not None for x in (one, other)):
            return "the anchors cannot keep their share and be scaled"
    if isinstance(one, ScaleAttention) and isinstance(other, ScaleAttention) and _target(one) == _target(other):
        return "the same attention has two factors"
    masks = [x for x in (one, other) if isinstance(x, MaskAnchors | MaskPositions)]
    scales = [x for x in (one, other) if isinstance(x, ScaleAttention)]
    if masks and scales and scales[0].chooses and _target(masks[0]) == _target(scales[0]):
        return "what receives no attention cannot be scaled"
    return ""


def _target(one: Any) -> tuple[Any, ...]:
    """What is acted on, apart from layers and heads."""
    return tuple(getattr(one, name, None) for name in ("positions", "region", "kind", "rule", "random"))
