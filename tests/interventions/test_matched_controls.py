"""The control of an intervention on anchors moves as much attention as the intervention itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.prompt import Prompt
from floatlens.interventions.attention_call import DecodingState, match_moved, moved_attention
from floatlens.interventions.effects import swap
from floatlens.models.family import FAMILIES


def profile(seed: int, sink: float, length: int = 40) -> np.ndarray:
    rest = np.random.default_rng(seed).dirichlet(np.full(length - 1, 5.0))
    return np.concatenate([[sink], (1 - sink) * rest])


def test_hiding_moves_the_share_of_what_is_hidden() -> None:
    a = profile(0, 0.3)
    assert moved_attention(a, np.where(np.arange(40) < 1, -np.inf, 0.0)) == pytest.approx(0.3)
    assert moved_attention(a, np.zeros(40)) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_hidden_sink_is_matched_by_many_weak_positions(seed: int) -> None:
    a, hide = profile(seed, 0.3), np.where(np.arange(40) < 1, -np.inf, 0.0)
    made = match_moved(a, hide, 1 + np.random.default_rng(seed).permutation(39))
    assert made[0] == 0 and np.isinf(made).sum() > 5
    assert 0.3 <= moved_attention(a, made) < 0.3 + a[1:].max()


@pytest.mark.parametrize("seed", range(5))
def test_an_exchange_is_matched_by_weaker_factors(seed: int) -> None:
    """The factors of an exchange with a sink, at two ordinary positions, would move far more or less than it does."""
    a = profile(seed, 0.3)
    move = swap(a, np.arange(40) < 1, 8)
    free = np.setdiff1d(np.arange(40), np.flatnonzero(move))
    made = match_moved(a, move, np.random.default_rng(seed).permutation(free))
    assert not made[move != 0].any()
    assert moved_attention(a, made) == pytest.approx(moved_attention(a, move), rel=1e-3)


def test_more_than_half_of_the_others_are_never_hidden() -> None:
    a, hide = profile(0, 0.9), np.where(np.arange(40) < 1, -np.inf, 0.0)
    made = match_moved(a, hide, np.arange(1, 40))
    assert np.isinf(made).sum() == 19 and moved_attention(a, made) < 0.1


@pytest.mark.parametrize("moved", [False, True])
def test_the_positions_of_a_control_do_not_depend_on_the_padding(moved: bool) -> None:
    prompts = [Prompt("", list(range(3, 12))), Prompt("", [7, 8, 9, 10, 11])]

    def drawn(prompts: list[Prompt]) -> np.ndarray:
        batch = PromptBatch.of(prompts, 0, torch.device("cpu"))
        state = DecodingState(batch, 4, FAMILIES["llada"], lambda ids: [""] * len(ids), batch.ids_BP)
        at = np.arange(state.N)[None] - np.array(batch.pads)[:, None]  # position in the row
        share = np.where(at >= 0, 1.0 + at, np.nan)
        received = share / np.nansum(share, 1, keepdims=True) if moved else None
        return state.elsewhere(np.where((at == 1) | (at == 3), -np.inf, 0.0), 5, received_RT=received)

    together, alone = drawn(prompts), drawn(prompts[1:])
    np.testing.assert_array_equal(together[1, 4:], alone[0])
    assert np.isinf(alone).sum() >= 2 and not together[1, :4].any() and not np.isinf(alone[0, [1, 3]]).any()
