"""The samplers of adapted models: the most certain positions first, the same number at each step, and end tokens last.

`canvas` reads the prompt once with the unchanged model and denoises a canvas of masks with the adapter; `a2d-shifted` runs
the whole sequence at every step. Positions are ranked as in Dream's sampler. A short answer is followed by end tokens, of
which the model is certain before it knows the answer; writing them first would cut the answer off. So positions whose token
ends the answer are written after all others, as with LLaDA's `confidence_eos_eot_inf`; `eos_last=False` switches this off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from floatlens.decode.blocks import visible
from floatlens.decode.denoising import Candidates, Denoising
from floatlens.decode.draws import most_confident, transfers
from floatlens.decode.dream import propose
from floatlens.decode.network import ForwardPass, Passes
from floatlens.decode.sampler import one_of, register_sampler, setting, top_k, top_p

MEASURES = ("entropy", "maskgit_plus", "topk_margin")


@register_sampler("a2d-shifted")
@dataclass(frozen=True)
class MostCertain(Denoising):
    """Writes the most certain positions first."""

    masks_again: ClassVar[bool] = False

    alg: str = setting("entropy", f"Measure of certainty: {', '.join(MEASURES)}.", one_of(*MEASURES))
    top_p: float | None = top_p()
    top_k: int | None = top_k()
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


class CanvasPasses(Passes):
    """The passes of a canvas: the last prompt token and the masks after it, which see the whole prompt and each other.

    The first pass also reads the prompt, causally and without the adapter. Row j - 1 writes position j.
    """

    cache: Any = None

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        first, T = self.P - 1, x_BT.shape[1]
        real_BT = self.real(T)
        real_BT = torch.ones_like(x_BT, dtype=torch.bool) if real_BT is None else real_BT
        positions_BT = real_BT.long().cumsum(-1) - 1
        # The canvas is one block; the prompt's tokens are blocks of their own, and -1 is padding.
        blocks_BT, positions_BT = positions_BT.masked_fill(~real_BT, -1), positions_BT.clamp_min(0)
        blocks_BT[:, first:] = T
        if self.cache is None:
            from transformers import DynamicCache

            self.cache, self.active = DynamicCache(), range(first, T)
            if first:
                with self.network.without_adapter():
                    forward = ForwardPass(x_BT[:, :first], 0, range(0), range(first))
                    seen_BQQ, rows_BQ = visible(blocks_BT[:, :first]), positions_BT[:, :first]
                    self.network.run(forward, seen_BQQ, keep=1, position_ids_BQ=rows_BQ, cache=self.cache)
        logits_BQV = self.network.run(
            ForwardPass(x_BT, first, range(first, T), range(0)),
            visible(blocks_BT, first),
            keep=T - first,
            position_ids_BQ=positions_BT[:, first:],
            cache=self.cache,
            store=False,
        )
        return self.P, logits_BQV[:, :-1]


@register_sampler("canvas")
@dataclass(frozen=True)
class Canvas(MostCertain):
    """The same, over the canvas alone."""

    passes: ClassVar[type[Passes]] = CanvasPasses


def put_last(rank_M: torch.Tensor, token_M: torch.Tensor, end_ids: tuple[int, ...]) -> torch.Tensor:
    """Ranks in which positions whose token ends the answer come after all others, in unchanged order."""
    ends_M = torch.isin(token_M, token_M.new_tensor(end_ids))
    below = rank_M.max() - rank_M.min() + 1
    return torch.where(ends_M, rank_M - below, rank_M)
