"""Column sums of scores, compared with sums over the full matrix."""

from __future__ import annotations

import pytest
import torch

from floatlens.attention.statistics.geometry import BLOCK, causal_products


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_causal_sums_in_blocks_are_those_of_the_masked_matrix(length: int, heads: int, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(length)
    q = torch.randn(2, length, heads, 8, generator=generator).transpose(1, 2)  # the memory layout of transformers
    k = torch.randn(2, length, kv_heads, 8, generator=generator).transpose(1, 2)
    weight = torch.rand(2, heads, 3, length, generator=generator)
    score_BHQT = torch.einsum("bhqd,bhtd->bhqt", q.double(), k.repeat_interleave(heads // kv_heads, 1).double())
    wanted = torch.einsum("bhsq,bhqt->bhst", weight.double(), score_BHQT.tril())
    torch.testing.assert_close(causal_products(q, k, weight).double(), wanted, atol=1e-4, rtol=0)
