"""Denoise the most certain positions first, the same number at each step, and end tokens last.

This is the loop of the samplers for adapted models (`canvas`, `a2d-shifted`), which differ only in their forward passes.
Positions are ranked as in Dream's sampler. A short answer is followed by end tokens, of which the model is certain before it
knows the answer; writing them first would cut the answer off. So positions whose token ends the answer are written after all
others, as with LLaDA's `confidence_eos_eot_inf`; `eos_last=False` switches this off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.decode.draws import Draws
from floatlens.decode.dream import propose
from floatlens.decode.llada import transfers
from floatlens.decode.most_confident import most_confident
from floatlens.decode.replay import Passes
from floatlens.decode.settings import Settings, check_nucleus, check_one_of, check_whole
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step

MEASURES = ("entropy", "maskgit_plus", "topk_margin")


@dataclass(frozen=True)
class MostCertainSettings(Settings):
    """Settings of samplers that write the most certain positions first.

    steps      number of passes; defaults to `max_new_tokens`
    alg        the measure of certainty
    eos_last   whether positions whose token ends the answer are written after all others
    """

    steps: int | None = None
    alg: str = "entropy"
    top_p: float | None = None
    top_k: int | None = None
    eos_last: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", self.max_new_tokens if self.steps is None else self.steps)
        check_whole(self.steps, "steps")
        check_one_of(self.alg, "alg", MEASURES)
        check_nucleus(self.top_p, self.top_k)

    @property
    def step_count(self) -> int:
        return self.steps or self.max_new_tokens


def denoise(
    passes: Passes,
    ids_BP: torch.Tensor,
    settings: MostCertainSettings,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per pass."""
    B, P = ids_BP.shape
    N = settings.max_new_tokens
    draws = draws or Draws([settings.seed] * B)
    x_BT = torch.cat([ids_BP, ids_BP.new_full((B, N), special.mask) if tail_BN is None else tail_BN], 1)
    hidden_BN = x_BT[:, P:] == special.mask  # stored separately, because a model may write the mask token itself
    counts = [transfers(int(n), settings.step_count) for n in hidden_BN.sum(1)]
    for index in range(settings.step_count):
        logits_BNV = passes(x_BT)
        after_BT = x_BT.clone()
        committed_BT = torch.zeros_like(x_BT, dtype=torch.bool)
        confidence_BT = torch.full(x_BT.shape, torch.nan, dtype=torch.float32, device=x_BT.device)
        for row in range(B):
            masked_M = P + hidden_BN[row].nonzero()[:, 0]
            if not len(masked_M):
                continue
            rank_M, token_M, confidence_BT[row, masked_M] = propose(
                logits_BNV[row, masked_M - P].float(), settings, draws, row
            )
            if settings.eos_last:
                rank_M = put_last(rank_M, token_M, special.end_ids)
            order = most_confident(rank_M, counts[row][index])
            after_BT[row, masked_M[order]] = token_M[order]
            committed_BT[row, masked_M[order]] = True
        hidden_BN &= ~committed_BT[:, P:]
        yield Step(index, x_BT, after_BT, committed_BT, confidence_BT, passes.active)
        x_BT = after_BT


def put_last(rank_M: torch.Tensor, token_M: torch.Tensor, end_ids: tuple[int, ...]) -> torch.Tensor:
    """Ranks in which positions whose token ends the answer come after all others, in unchanged order.

    >>> put_last(torch.tensor([-0.5, -0.1, -0.9]), torch.tensor([7, 2, 2]), (2,)).argsort(descending=True).tolist()
    [0, 1, 2]
    """
    ends_M = torch.isin(token_M, token_M.new_tensor(end_ids))
    below = rank_M.max() - rank_M.min() + 1
    return torch.where(ends_M, rank_M - below, rank_M)
