"""Raise an error for interventions that cannot work together, or on this model, before any weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Intervention, Shape
from floatlens.models.describe import is_state_space

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NO_ATTENTION = "a state-space model has none (its implicit attention is observed, not computed with)"


def check(interventions: Sequence[Intervention], shape: Shape, config: PreTrainedConfig) -> None:
    """Raise an error for layers and heads that do not exist, and for interventions that contradict each other.

    A state-space model has no attention that they could change, and is refused.
    """
    if interventions and is_state_space(config):
        raise FloatLensError(
            f"{interventions[0]} changes softmax attention, and {NO_ATTENTION}; use a model with attention layers"
        )
    for one in interventions:
        one.check(shape, config)
    for one, other in combinations(interventions, 2):
        reason = "it is given twice" if one == other else one.contradicts(other) or other.contradicts(one)
        if reason and _meet(one, other, shape):
            raise FloatLensError(f"{one} and {other} contradict each other: {reason}; use one of them, or other layers")


def _meet(one: Intervention, other: Intervention, shape: Shape) -> bool:
    layers = set(one.layer_numbers(shape)) & set(other.layer_numbers(shape))
    return bool(layers and set(one.head_numbers(shape)) & set(other.head_numbers(shape)))
