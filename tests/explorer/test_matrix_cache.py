"""Attention matrices that are kept for requests: bounded memory, and errors for steps that were left out."""

from __future__ import annotations

import pytest
import torch

from floatlens.errors import FloatLensError
from floatlens.explorer.kept_runs import Kept, RunMatrices

ABOUT = {"steps": 8, "layers": [0, 1], "length": 10, "cached": False}
STEP = 2 * 2 * 10 * 10  # bytes of a step


def test_a_run_that_is_too_large_keeps_every_nth_step_and_says_so() -> None:
    kept = RunMatrices(**ABOUT, room=3 * STEP)
    assert kept.every == 3 and kept.matrices_SLTT.nbytes <= 3 * STEP
    for step in range(8):
        kept.add(step, {layer: torch.full((10, 10), 0.1 * step) for layer in (0, 1)})
    assert kept.of(6, 1, 4, "to") == pytest.approx([0.6] * 10, abs=1e-3)
    with pytest.raises(FloatLensError, match="step 4 was not kept.*one step in every 3 is kept"):
        kept.of(4, 0, 0, "to")


def test_a_run_of_which_not_one_step_fits_keeps_nothing_and_says_so() -> None:
    kept = RunMatrices(**ABOUT, room=STEP - 1)
    kept.add(0, {layer: torch.ones(10, 10) for layer in (0, 1)})
    assert kept.matrices_SLTT.nbytes == 0
    with pytest.raises(FloatLensError, match="was not kept: 10 positions in 2 layers"):
        kept.of(0, 0, 0, "to")


def test_the_oldest_runs_are_let_go_first() -> None:
    kept = Kept(20 * STEP)
    for number in range(4):
        matrices = RunMatrices(**ABOUT, room=10 * STEP)
        assert kept.add(f"page {number}", number, matrices, matrices.matrices_SLTT.nbytes)
    assert list(kept.values) == [2, 3] and kept.get(3) is matrices
    with pytest.raises(FloatLensError, match="no longer kept"):
        kept.get(0)
    kept.drop("page 2")
    assert list(kept.values) == [3]
    assert not kept.add("page 3", 4, "a value", 20 * STEP + 1), "too large by itself"
