"""Interventions: change attention while it is computed, to test the role of anchors and heads."""

from floatlens.interventions.registry import INTERVENTIONS
from floatlens.interventions.registry import parse_intervention as parse

__all__ = ["INTERVENTIONS", "parse"]
