"""Dream's sampler: at time t → s a share 1 − s/t of the masks is revealed, the most confident first.

After generation_utils.py of Dream (arXiv 2508.15487); step histories equal its own (tests/golden). The number of
positions is computed per row, so that a row gives the same result in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from floatlens.decode.draws import Draws, filter_logits, most_confident
from floatlens.decode.network import Network
from floatlens.decode.passes import WholePasses
from floatlens.decode.registry import register_sampler
from floatlens.decode.settings import DenoisingSettings, not_below_0, one_of, setting, top_k, top_p
from floatlens.decode.step import SpecialTokens, Step
from floatlens.errors import FloatLensError

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


@dataclass(frozen=True)
class DreamSettings(DenoisingSettings):
    """Settings of Dream's sampler; `steps` defaults to `max_new_tokens`."""

    alg: str = setting("entropy", f"Which masks are revealed first: {', '.join(ALGORITHMS)}.", one_of(*ALGORITHMS))
    alg_temp: float | None = setting(
        None,
        "Temperature of the choice of positions; the most confident ones by default.",
        not_below_0("takes the most confident positions"),
    )
    top_p: float | None = top_p()
    top_k: int | None = top_k()
    eps: float = setting(1e-3, "The last time of the schedule, between 0 and 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.eps < 1:
            raise FloatLensError(f"eps {self.eps} should be between 0 and 1, such as 0.001")


@register_sampler("dream", DreamSettings)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: DreamSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per forward pass."""
    B, P = ids_BP.shape
    mask_id = special.mask
    length = settings.max_new_tokens
    draws = draws or Draws([settings.seed] * B)
    x_BT = torch.cat([ids_BP, ids_BP.new_full((B, length), mask_id) if tail_BN is None else tail_BN], 1)
    # Logits are shifted: row j - 1 predicts position j, so the last prompt row predicts the first mask.
    passes = WholePasses(network, ids_BP, real_BP, settings, special=special, shifted=True)
    pads = [0] * B if real_BP is None else (P - real_BP.sum(1)).tolist()
    times = torch.linspace(1, settings.eps, settings.step_count + 1)

    for index in range(settings.step_count):
        _, logits_BNV = passes(x_BT)
        last = index == settings.step_count - 1
        reveal = torch.ones(()) if last else 1 - times[index + 1] / times[index]
        after_BT = x_BT.clone()
        committed_BT = torch.zeros_like(x_BT, dtype=torch.bool)
        confidence_BT = torch.full(x_BT.shape, torch.nan, dtype=torch.float32, device=x_BT.device)
        for row in range(B):
            places_N = P + (x_BT[row, P:] == mask_id).nonzero()[:, 0]
            if not len(places_N):
                continue
            logits_NV = logits_BNV[row, places_N - P]
            if settings.alg == "origin":
                chosen_N = (draws.uniform(row, (len(places_N),)) < reveal).to(x_BT.device)
                _, x0_C, probability_C = propose(logits_NV[chosen_N], settings, draws, row)
                chosen, x0, confidence_BT[row, places_N[chosen_N]] = places_N[chosen_N], x0_C, probability_C
            else:
                rank_N, x0_N, probability_N = propose(logits_NV, settings, draws, row)
                confidence_BT[row, places_N] = probability_N
                count = len(places_N) if last else int(torch.tensor(float(len(places_N))) * reveal)
                order = pick(rank_N, places_N - pads[row], x_BT.shape[1] - pads[row], count, settings, draws, row)
                chosen, x0 = places_N[order], x0_N[order]
            after_BT[row, chosen] = x0
            committed_BT[row, chosen] = True
        yield Step(index, x_BT, after_BT, committed_BT, confidence_BT)
        x_BT = after_BT


def propose(
    logits_NV: torch.Tensor, settings: Any, draws: Draws, row: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per masked position: the confidence by the chosen measure, the token, and that token's probability."""
    probs_NV = filter_logits(logits_NV, settings.temperature, settings.top_p, settings.top_k).softmax(-1)
    if settings.temperature > 0 and len(probs_NV):
        weights = probs_NV / probs_NV.sum(-1, keepdim=True)
        x0_N = draws.choose(row, weights)[:, 0].to(probs_NV.device)
        probability_N = probs_NV.gather(-1, x0_N[:, None])[:, 0]
    else:
        probability_N, x0_N = probs_NV.max(-1)
    certain_N = probability_N
    if settings.alg == "topk_margin":
        two = probs_NV.sort(dim=-1, descending=True).values[:, :2]
        certain_N = two[:, 0] - two[:, 1]
    elif settings.alg == "entropy":
        certain_N = (probs_NV * (probs_NV + 1e-10).log()).sum(-1)
    return certain_N, x0_N, probability_N.float()


def pick(
    rank_N: torch.Tensor,
    places_N: torch.Tensor,
    positions: int,
    count: int,
    settings: DreamSettings,
    draws: Draws,
    row: int,
) -> torch.Tensor:
    """Indices of the masked positions to commit: the `count` most confident, or `count` drawn by confidence."""
    if count == 0:
        return places_N.new_empty(0)
    if not settings.alg_temp:
        return most_confident(rank_N, count)
    weights_T = torch.full((positions,), -torch.inf, dtype=rank_N.dtype, device=rank_N.device)
    weights_T[places_N] = rank_N
    drawn = draws.choose(row, (weights_T / settings.alg_temp).softmax(-1), count, replacement=False)
    index_T = torch.zeros(positions, dtype=torch.long, device=rank_N.device)
    index_T[places_N] = torch.arange(len(places_N), device=rank_N.device)
    return index_T[drawn.to(rank_N.device)]
