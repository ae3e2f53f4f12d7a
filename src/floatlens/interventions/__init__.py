"""Interventions: change attention while it is computed, to test the role of anchors and heads."""
