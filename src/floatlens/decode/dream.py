"""Dream's sampler: at time t → s a share 1 − s/t of the masks is revealed, the most confident first.

After generation_utils.py of Dream (arXiv 2508.15487); step histories equal its own (tests/golden). The number of
positions is computed per row, so that a row gives the same result in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from floatlens.decode.draws import Draws, filter_logits, most_confident
from floatlens.decode.network import Passes
from floatlens.decode.sampler import AT_LEAST_0, SHARE, TOP_K, TOP_P, Candidates, Denoising, register_sampler, setting

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


@register_sampler("dream")
@dataclass(frozen=True)
class Dream(Denoising):
    """Dream's sampler; `steps` defaults to `max_new_tokens`."""

    alg: str = setting("entropy", f"Which masks are revealed first: {', '.join(ALGORITHMS)}.", options=ALGORITHMS)
    alg_temp: float | None = setting(
        None,
        "Temperature of the choice of positions; the most confident ones by default.",
        AT_LEAST_0,
    )
    top_p: float | None = TOP_P
    top_k: int | None = TOP_K
    eps: float = setting(1e-3, "The last time of the schedule, between 0 and 1.", SHARE)

    def choose(
        self, passes: Passes, row: int, index: int, logits_NV: torch.Tensor, masked_M: torch.Tensor
    ) -> Candidates:
        times = torch.linspace(1, self.eps, self.step_count + 1)
        last = index == self.step_count - 1
        reveal = torch.ones(()) if last else 1 - times[index + 1] / times[index]
        if self.alg == "origin":
            chosen_M = (passes.draws.uniform(row, (len(masked_M),)) < reveal).to(masked_M.device)
            _, token_C, probability_C = propose(logits_NV[masked_M[chosen_M]], self, passes.draws, row)
            return masked_M[chosen_M], token_C, probability_C, torch.ones_like(token_C, dtype=torch.bool)
        rank_M, token_M, probability_M = propose(logits_NV[masked_M], self, passes.draws, row)
        count = len(masked_M) if last else int(torch.tensor(float(len(masked_M))) * reveal)
        order = most_confident(rank_M, count)
        if count and self.alg_temp:
            # Drawn as published: by weights over the whole sequence, in which only masks have any.
            prompt = int(passes.real_BP[row].sum())
            weights_T = torch.full((prompt + len(logits_NV),), -torch.inf, dtype=rank_M.dtype, device=rank_M.device)
            weights_T[prompt + masked_M] = rank_M
            drawn = passes.draws.choose(row, (weights_T / self.alg_temp).softmax(-1), count, replacement=False)
            order = torch.searchsorted(prompt + masked_M, drawn.to(masked_M.device))
        return masked_M, token_M, probability_M, order


def propose(
    logits_MV: torch.Tensor, settings: Any, draws: Draws, row: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per masked position: the confidence by the chosen measure, the token, and that token's probability."""
    probs_MV = filter_logits(logits_MV, settings.temperature, settings.top_p, settings.top_k).softmax(-1)
    if settings.temperature > 0 and len(probs_MV):
        weights = probs_MV / probs_MV.sum(-1, keepdim=True)
        token_M = draws.choose(row, weights)[:, 0].to(probs_MV.device)
        probability_M = probs_MV.gather(-1, token_M[:, None])[:, 0]
    else:
        probability_M, token_M = probs_MV.max(-1)
    certain_M = probability_M
    if settings.alg == "topk_margin":
        two = probs_MV.sort(dim=-1, descending=True).values[:, :2]
        certain_M = two[:, 0] - two[:, 1]
    elif settings.alg == "entropy":
        certain_M = (probs_MV * (probs_MV + 1e-10).log()).sum(-1)
    return certain_M, token_M, probability_M.float()
