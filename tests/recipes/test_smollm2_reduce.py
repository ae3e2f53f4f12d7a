"""Reducing an adapter keeps the nearest product of a lower rank."""

from __future__ import annotations

import torch

from recipes.smollm2.reduce import reduce


def test_the_error_is_that_of_the_singular_values_left_out() -> None:
    torch.manual_seed(0)
    a_RI, b_OR = torch.randn(6, 20), torch.randn(12, 6)
    small_a, small_b, kept = reduce(a_RI, b_OR, 4)
    values = torch.linalg.svdvals(b_OR @ a_RI)
    assert small_a.shape == (4, 20) and small_b.shape == (12, 4)
    error = (b_OR @ a_RI - small_b @ small_a).square().sum()
    torch.testing.assert_close(error, values[4:].square().sum(), rtol=1e-4, atol=1e-4)
    assert abs(kept - float(values[:4].square().sum() / values.square().sum())) < 1e-5
