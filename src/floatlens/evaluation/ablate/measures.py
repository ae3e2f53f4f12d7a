"""What is measured of an answer under an intervention; named here, so that findings read tables without loading models."""

from __future__ import annotations

from floatlens.evaluation.metrics import SCORES

MEASURES = (*SCORES, "agreement", "confidence", "kl", "gold_nll", "ended", "well_formed")
