"""The samplers of adapted models: the most certain positions first, the same number at each step, and end tokens last.

`canvas` reads the prompt once with the unchanged model and denoises a canvas of masks with the adapter; `a2d-shifted` runs
the whole sequence at every step. Positions are ranked as in Dream's sampler. A short answer is followed by end tokens, of
which the model is certain before it knows the answer; writing them first would cut the answer off. So positions whose token
ends the answer are written after all others, as with LLaDA's `confidence_eos_eot_inf`; `eos_last=False` switches this off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from floatlens.decode.draws import Draws, most_confident, transfers
from floatlens.decode.dream import propose
from floatlens.decode.network import ForwardPass, Network
from floatlens.decode.passes import Passes, WholePasses
from floatlens.decode.registry import register_sampler
from floatlens.decode.settings import DenoisingSettings, one_of, setting, top_k, top_p
from floatlens.decode.step import SpecialTokens, Step

MEASURES = ("entropy", "maskgit_plus", "topk_margin")


@dataclass(frozen=True)
class MostCertainSettings(DenoisingSettings):
    """Settings of samplers that write the most certain positions first."""

    alg: str = setting(
        "entropy",
        "Measure of certainty: entropy, maskgit_plus, topk_margin.",
        one_of("entropy", "maskgit_plus", "topk_margin"),
    )
    top_p: float | None = top_p()
    top_k: int | None = top_k()
    eos_last: bool = setting(True, "Whether positions whose token ends the answer are written after all others.")


class CanvasPasses(Passes):
    """The passes of a canvas: the last prompt token and the masks after it, which see the whole prompt and each other.

    The first pass also reads the prompt, causally and without the adapter. Row j - 1 writes position j.
    """

    cache: Any = None

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        first, T = self.P - 1, x_BT.shape[1]
        real_BT = self.real(T)
        real_BT = torch.ones_like(x_BT, dtype=torch.bool) if real_BT is None else real_BT
        positions_BT = (real_BT.long().cumsum(-1) - 1).clamp_min(0)
        if self.cache is None:
            from transformers import DynamicCache

            self.cache, self.active = DynamicCache(), range(first, T)
            if first:
                with self.network.without_adapter():
                    forward = ForwardPass(x_BT[:, :first], 0, range(0), range(first))
                    visible_BQQ, rows_BQ = causal(real_BT[:, :first]), positions_BT[:, :first]
                    self.network.run(forward, visible_BQQ, keep=1, position_ids_BQ=rows_BQ, cache=self.cache)
        logits_BQV = self.network.run(
            ForwardPass(x_BT, first, range(first, T), range(0)),
            real_BT[:, None].expand(-1, T - first, -1),
            keep=T - first,
            position_ids_BQ=positions_BT[:, first:],
            cache=self.cache,
            store=False,
        )
        return self.P, logits_BQV[:, :-1]


def causal(real_BQ: torch.Tensor) -> torch.Tensor:
    """True where a prompt row may see a key: itself, and the real tokens before it (B, Q, Q).

    >>> causal(torch.tensor([[False, True, True]])).int().tolist()
    [[[1, 0, 0], [0, 1, 0], [0, 1, 1]]]
    """
    Q = real_BQ.shape[1]
    before_QQ = torch.ones(Q, Q, dtype=torch.bool, device=real_BQ.device).tril()
    itself_QQ = torch.eye(Q, dtype=torch.bool, device=real_BQ.device)  # padding sees itself, so that no row is empty
    return (before_QQ & real_BQ[:, None]) | itself_QQ


@register_sampler("canvas", MostCertainSettings, passes=CanvasPasses)
def sample_canvas(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: MostCertainSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per pass over the canvas."""
    passes = CanvasPasses(network, ids_BP, real_BP, settings, special=special)
    return denoise(passes, ids_BP, settings, special, draws, tail_BN)


@register_sampler("a2d-shifted", MostCertainSettings)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: MostCertainSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per pass over the whole sequence."""
    passes = WholePasses(network, ids_BP, real_BP, settings, special=special, shifted=True)
    return denoise(passes, ids_BP, settings, special, draws, tail_BN)


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
        _, logits_BNV = passes(x_BT)
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
