"""An interval mask of three integers equals the mask that a model would pass."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import (
    causal_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from floatlens.attention.kernels.interval_mask import IntervalMask


@pytest.mark.parametrize(
    ("mask", "function"),
    [
        (IntervalMask(ahead=0), causal_mask_function),
        (IntervalMask(back=2, ahead=0), sliding_window_causal_mask_function(3)),
        (IntervalMask(back=2, ahead=2), sliding_window_bidirectional_mask_function(2)),
    ],
)
@pytest.mark.parametrize("queries", [1, 4, 9])
def test_it_equals_the_mask_of_transformers(mask: IntervalMask, function: object, queries: int) -> None:
    wanted = sdpa_mask(
        batch_size=1, q_length=queries, kv_length=9, q_offset=9 - queries, mask_function=function,
        allow_is_causal_skip=False, allow_is_bidirectional_skip=False,
    )  # fmt: skip
    assert torch.equal(mask.dense(queries, 9), wanted[:, 0])


def test_blocks_are_counted_from_the_first_real_position() -> None:
    seen = IntervalMask(block=2).dense(5, 5, torch.tensor([1]))[0].int().tolist()
    assert seen == [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]]


def test_an_offset_puts_the_queries_in_the_middle() -> None:
    assert IntervalMask(ahead=0, offset=1).dense(2, 4)[0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
