"""Studies of causes: the same questions with and without interventions, with matched controls."""

from floatlens.tasks.ablate.run import ablate

__all__ = ["ablate"]
