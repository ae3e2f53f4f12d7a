"""The most certain position is written first, and the end of an answer last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import floatlens as fl
from floatlens.decode.dream import Dream
from floatlens.decode.most_certain import MostCertain
from floatlens.decode.network import Passes
from floatlens.decode.step import SpecialTokens
from tests.models import checkpoints

END, MASK, VOCABULARY = 2, 9, 10
PROMPT = [[3, 4, 5]]


class Planned(Passes):
    """A model that wants 6 7 8 and then ends, but is more certain of the end than of the answer, far positions first.

    Once an end stands next to it, it would rather end than go on.
    """

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        new = x_BT[0, len(PROMPT[0]) :].tolist()
        logits = torch.zeros(1, len(new), VOCABULARY)
        for i in range(len(new)):
            ends_after = END in new[i + 1 : i + 2]
            token = (6, 7, 8)[i] if i < 3 and not (ends_after and i) else END
            logits[0, i, token] = 3.0 + (1.0 + i if token == END else -0.1 * i)
        return len(PROMPT[0]), logits


def written(**settings: object) -> list[tuple[int, int]]:
    """Position and token of each commit, in order."""
    chosen = MostCertain(max_new_tokens=6, **settings)  # type: ignore[arg-type]
    special = SpecialTokens(mask_id=MASK, end_ids=(END,))
    found = []
    passes = Planned(None, None, torch.tensor(PROMPT), None, chosen, special=special)  # type: ignore[arg-type]
    for step in chosen.sample(passes):
        found += [(int(p) - 3, int(step.after_BT[0, p])) for p in step.committed_BT[0].nonzero()[:, 0]]
    return found


def test_the_answer_is_written_before_its_end() -> None:
    assert written() == [(0, 6), (1, 7), (2, 8), (5, END), (4, END), (3, END)]


def test_without_this_the_end_cuts_the_answer_off() -> None:
    assert written(eos_last=False) == [(5, END), (4, END), (3, END), (2, END), (1, END), (0, 6)]


def test_the_positions_are_shared_evenly_among_the_steps() -> None:
    assert written(steps=2) == [(0, 6), (1, 7), (2, 8), (3, END), (4, END), (5, END)]


class WritesMasks(Passes):
    """A model that is certain that the first new token is the mask itself, and less and less so of the others."""

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        logits = torch.zeros(1, 4, VOCABULARY)
        for position, token in enumerate((MASK, 6, 7, 8)):
            logits[0, position, token] = 9.0 - position
        return len(PROMPT[0]), logits


def test_a_mask_that_the_model_writes_itself_counts_as_written() -> None:
    chosen, special = MostCertain(max_new_tokens=4), SpecialTokens(mask_id=MASK, end_ids=(END,))
    passes = WritesMasks(None, None, torch.tensor(PROMPT), None, chosen, special=special)  # type: ignore[arg-type]
    steps = list(chosen.sample(passes))
    assert [step.committed_BT[0, 3:].nonzero()[:, 0].tolist() for step in steps] == [[0], [1], [2], [3]]
    assert steps[-1].after_BT[0, 3:].tolist() == [MASK, 6, 7, 8]


class Fixed(Passes):
    """A model whose logits do not depend on what is written, and which never writes a mask."""

    logits_NV = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(1))
    logits_NV[:, MASK] = -torch.inf

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        return len(PROMPT[0]), self.logits_NV[None]


def test_dream_draws_positions_by_confidence_over_the_whole_sequence() -> None:
    """As published: one draw without replacement from softmax(-entropy / alg_temp), where only masks have any weight."""
    chosen = Dream(max_new_tokens=6, steps=2, alg_temp=0.5, seed=3)
    passes = Fixed(None, None, torch.tensor(PROMPT), None, chosen, special=SpecialTokens(mask_id=MASK))  # type: ignore[arg-type]
    steps = list(chosen.sample(passes))
    draws, hidden = torch.Generator().manual_seed(3), set(range(6))
    probs = Fixed.logits_NV.softmax(-1)
    for step, count in zip(steps, (2, 4), strict=True):  # 1 - 0.5005 of 6, rounded down, and then the rest
        weights = torch.full((3 + 6,), -torch.inf)
        for position in hidden:
            weights[3 + position] = (probs[position] * (probs[position] + 1e-10).log()).sum()
        drawn = torch.multinomial((weights / 0.5).softmax(-1), count, False, generator=draws) - 3
        assert set(step.committed_BT[0, 3:].nonzero()[:, 0].tolist()) == set(drawn.tolist())
        hidden -= set(drawn.tolist())
    assert not hidden and steps[-1].after_BT[0, 3:].tolist() == Fixed.logits_NV.argmax(-1).tolist()


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> fl.Lens:
    base = checkpoints.native(tmp_path_factory.mktemp("base"), "llama")
    checkpoints.edit_config(base, mask_token_id=checkpoints.MASK)
    return fl.load(str(base), family="a2d-shifted")


@torch.no_grad()
def by_hand(lens: fl.Lens, prompt: list[int], new: int) -> list[int]:
    """One position per pass, the one of lowest entropy, over the whole sequence; row j - 1 writes position j."""
    ids = [*prompt, *[lens.mask_id] * new]
    hidden = set(range(len(prompt), len(ids)))
    while hidden:
        probs_TV = lens.model(torch.tensor([ids])).logits[0].softmax(-1)
        options = []
        for p in hidden:
            row_V = probs_TV[p - 1]
            token = int(row_V.argmax())
            options.append((token in lens.end_ids, float(-(row_V * (row_V + 1e-10).log()).sum()), p, token))
        _, _, position, token = min(options)
        ids[position] = token
        hidden.remove(position)
    return ids


@pytest.mark.parametrize("prompts", [[[5, 6, 7]], [[5, 6, 7], [40, 8, 22, 30, 9]]], ids=["alone", "in a batch"])
def test_a_shifted_model_is_denoised_one_position_per_pass(lens: fl.Lens, prompts: list[list[int]]) -> None:
    traces = lens.traces(prompts, max_new_tokens=6, record=["received"])
    for trace, prompt in zip(traces, prompts, strict=True):
        assert trace.final_tokens.tolist() == by_hand(lens, prompt, 6)


def test_dream_s_sampler_can_be_chosen(tmp_path: Path) -> None:
    base = checkpoints.native(tmp_path, "llama")
    checkpoints.edit_config(base, mask_token_id=checkpoints.MASK)
    assert fl.load(str(base), family="a2d-shifted", sampler="dream").sampler == "dream"
