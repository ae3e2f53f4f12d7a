"""Small functions that samplers share, by example."""

from __future__ import annotations

import pytest
import torch

from floatlens.decode.draws import most_confident, transfers
from floatlens.decode.llada2 import is_written_to_its_end
from floatlens.decode.most_certain import put_last
from floatlens.decode.network import count_blocks, visible
from floatlens.decode.sampler import settings_for


def test_a_block_sees_itself_and_the_blocks_before_it_and_padding_only_itself() -> None:
    seen = visible(torch.tensor([[-1, 0, 1, 1]])).int().tolist()
    assert seen == [[[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]]]


def test_blocks_and_positions_are_counted_from_the_first_real_token() -> None:
    blocks, positions = count_blocks(torch.tensor([[False, True, True, True]]), 2)
    assert blocks.tolist() == [[-1, 0, 0, 1]] and positions.tolist() == [[0, 0, 1, 2]]


def test_ties_of_confidence_go_to_the_earlier_position() -> None:
    assert most_confident(torch.tensor([0.5, 1.0, 0.2, 1.0, 1.0]), 2).tolist() == [1, 3]


def test_positions_are_shared_evenly_and_the_first_steps_take_the_rest() -> None:
    assert transfers(16, 6) == [3, 3, 3, 3, 2, 2]


def test_a_text_is_written_to_its_end_if_no_mask_stands_before_the_end_token() -> None:
    ends = torch.tensor([2])
    assert is_written_to_its_end(torch.tensor([5, 2, 9, 9]), ends, 9)
    assert not is_written_to_its_end(torch.tensor([9, 2]), ends, 9)


def test_end_tokens_are_ranked_after_all_others() -> None:
    ranks = put_last(torch.tensor([-0.5, -0.1, -0.9]), torch.tensor([7, 2, 2]), (2,))
    assert ranks.argsort(descending=True).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("sampler", "filtered"), [("sdar", True), ("llada2", False), ("llada2.1", False)])
def test_top_k_changes_greedy_confidence_only_where_the_published_sampler_filters(sampler: str, filtered: bool) -> None:
    logits_LV = torch.tensor([[2.0, 1.0, 0.0]])
    token_L, probability_L = settings_for(sampler, top_k=1).propose(logits_LV, None, 0)  # type: ignore[attr-defined]
    assert token_L.tolist() == [0]
    assert float(probability_L) == pytest.approx(1.0 if filtered else float(logits_LV.softmax(-1)[0, 0]))
