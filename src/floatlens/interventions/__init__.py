"""Interventions: attention changed while it is computed, to see what its anchors and heads are for."""

from floatlens.interventions.registry import INTERVENTIONS
from floatlens.interventions.registry import parse_intervention as parse

__all__ = ["INTERVENTIONS", "parse"]
