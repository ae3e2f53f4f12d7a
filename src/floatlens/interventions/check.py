"""Raise an error for interventions that cannot work together, or on this model, before any weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, Shape

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def check(interventions: Sequence[Intervention], shape: Shape, config: PreTrainedConfig) -> None:
    """Raise an error for layers and heads that do not exist, and for interventions that contradict each other."""
    for one in interventions:
        one.check(shape, config)
    for one, other in combinations(interventions, 2):
        reason = "it is given twice" if one == other else one.contradicts(other) or other.contradicts(one)
        if reason and _meet(one, other, shape):
            raise FloatLensError(f"{one} and {other} contradict each other: {reason}; use one of them, or other layers")


def _meet(one: Intervention, other: Intervention, shape: Shape) -> bool:
    layers = set(one.layer_numbers(shape)) & set(other.layer_numbers(shape))
    return bool(layers and set(one.head_numbers(shape)) & set(other.head_numbers(shape)))
