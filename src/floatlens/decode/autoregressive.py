"""The autoregressive sampler: one new token per step, keys and values kept in a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.decode.draws import Draws, filter_logits
from floatlens.decode.network import Network
from floatlens.decode.passes import CausalPasses
from floatlens.decode.registry import register_sampler
from floatlens.decode.settings import ThinkingSettings, top_k, top_p
from floatlens.decode.step import SpecialTokens, Step, write_step


@dataclass(frozen=True)
class AutoregressiveSettings(ThinkingSettings):
    """Settings of the autoregressive sampler: greedy at temperature 0."""

    top_p: float | None = top_p()
    top_k: int | None = top_k()


@register_sampler("autoregressive", AutoregressiveSettings)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: AutoregressiveSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
) -> Iterator[Step]:
    """Append up to `max_new_tokens` tokens to each prompt, until every row has ended. An ended row repeats its end token."""
    B = ids_BP.shape[0]
    draws = draws or Draws([settings.seed] * B)
    x_BT, passes = ids_BP, CausalPasses(network, ids_BP, real_BP, settings, special=special)
    ended_B = torch.zeros(B, dtype=torch.bool, device=ids_BP.device)
    ends = torch.tensor(special.end_ids, dtype=torch.long, device=ids_BP.device)

    for index in range(settings.step_count):
        _, logits_B1V = passes(x_BT)
        logits_BV = logits_B1V[:, 0].float()
        probs_BV = filter_logits(logits_BV, settings.temperature, settings.top_p, settings.top_k).softmax(-1)
        if settings.temperature > 0:
            token_B1 = torch.cat([draws.choose(row, probs_BV[row][None]) for row in range(B)]).to(x_BT.device)
        else:
            token_B1 = logits_BV.argmax(-1, keepdim=True)
        if settings.max_thinking_tokens is not None and index >= settings.max_thinking_tokens:
            assert settings.end_think_token_id is not None
            thinking_B1 = ~(x_BT[:, ids_BP.shape[1] :] == settings.end_think_token_id).any(1, keepdim=True)
            token_B1 = token_B1.masked_fill(thinking_B1, settings.end_think_token_id)
        probability_B1 = probs_BV.gather(-1, token_B1)
        token_B1 = torch.where(ended_B[:, None], x_BT[:, -1:], token_B1)
        everywhere_B1 = torch.ones_like(token_B1, dtype=torch.bool)
        step = write_step(index, x_BT, x_BT.shape[1], token_B1, everywhere_B1, probability_B1, running_B=~ended_B)
        yield step
        x_BT = step.after_BT
        ended_B = ended_B | torch.isin(token_B1[:, 0], ends)
        if bool(ended_B.all()):
            return
