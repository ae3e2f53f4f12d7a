"""The samplers of adapted models: the most certain positions first, the same number at each step, and end tokens last.

`canvas` reads the prompt once with the unchanged model and denoises a canvas of masks with the adapter; `a2d-shifted` runs
the whole sequence at every step. Positions are ranked as in Dream's sampler. A short answer is followed by end tokens, of
which the model is certain before it knows the answer; writing them first would cut the answer off. So positions whose token
ends the answer are written after all others, as with LLaDA's `confidence_eos_eot_inf`; `eos_last=False` switches this off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.blocks import place_causally
from floatlens.decode.draws import most_confident, transfers
from floatlens.decode.dream import propose
from floatlens.decode.network import Passes
from floatlens.decode.sampler import TOP_K, TOP_P, Candidates, Denoising, register_sampler, setting

MEASURES = ("entropy", "maskgit_plus", "topk_margin")


@register_sampler("a2d-shifted")
@dataclass(frozen=True)
class MostCertain(Denoising):
    """Writes the most certain positions first."""

    masks_again: ClassVar[bool] = False

    alg: str = setting("entropy", f"Measure of certainty: {', '.join(MEASURES)}.", options=MEASURES)
    top_p: float | None = TOP_P
    top_k: int | None = TOP_K
    eos_last: bool = setting(True, "Whether positions whose token ends the answer are written after all others.")

    def choose(
        self, passes: Passes, row: int, index: int, logits_NV: torch.Tensor, masked_M: torch.Tensor
    ) -> Candidates:
        rank_M, token_M, probability_M = propose(logits_NV[masked_M].float(), self, passes.draws, row)
        if self.eos_last:
            rank_M = put_last(rank_M, token_M, passes.special.end_ids)
        masks = int((passes.with_masks()[row, passes.P :] == passes.special.mask).sum())
        order = most_confident(rank_M, transfers(masks, self.step_count)[index])
        return masked_M, token_M, probability_M, order


@register_sampler("canvas")
@dataclass(frozen=True)
class Canvas(MostCertain):
    """The same, over a canvas: the last prompt token and the masks after it, which see the whole prompt and each other.

    The first pass also reads the prompt, causally and without the adapter. Row j - 1 writes position j.
    """

    def run(self, passes: Passes, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        first = passes.P - 1
        places = place_causally(passes, x_BT, first)
        with passes.without_adapter():
            passes.store(x_BT[:, :first], *(each_BT[:, :first] for each_BT in places))
        return passes.P, passes.run_block(x_BT, first, *places)[:, :-1]


def put_last(rank_M: torch.Tensor, token_M: torch.Tensor, end_ids: tuple[int, ...]) -> torch.Tensor:
    """Ranks in which positions whose token ends the answer come after all others, in unchanged order."""
    ends_M = torch.isin(token_M, token_M.new_tensor(end_ids))
    below = rank_M.max() - rank_M.min() + 1
    return torch.where(ends_M, rank_M - below, rank_M)
