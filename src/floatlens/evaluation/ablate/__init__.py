"""Studies of causes: the same questions with and without interventions, with matched controls."""

from floatlens.evaluation.ablate.run import ablate

__all__ = ["ablate"]
