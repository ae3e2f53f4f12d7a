"""The autoregressive sampler: one new token per step, keys and values kept in a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.decode.draws import filter_logits
from floatlens.decode.network import Passes
from floatlens.decode.sampler import END_THINK, THINKING, TOP_K, TOP_P, Sampler, register_sampler
from floatlens.decode.step import Step, write_step
from floatlens.errors import FloatLensError


@register_sampler("autoregressive")
@dataclass(frozen=True)
class Autoregressive(Sampler):
    """Appends up to `max_new_tokens` tokens, greedily at temperature 0. A row that has ended repeats its end token."""

    max_thinking_tokens: int | None = THINKING
    end_think_token_id: int | None = END_THINK
    top_p: float | None = TOP_P
    top_k: int | None = TOP_K

    def __post_init__(self) -> None:
        super().__post_init__()
        check_thinking(self.max_thinking_tokens, self.end_think_token_id)

    def run(self, passes: Passes, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        return x_BT.shape[1], passes.extend(x_BT)

    def end(self, passes: Passes, column: int) -> int:
        return column

    def sample(self, passes: Passes) -> Iterator[Step]:
        x_BT, B, P = passes.ids_BP, passes.B, passes.P
        ended_B = torch.zeros(B, dtype=torch.bool, device=x_BT.device)
        for index in range(self.step_count):
            _, logits_B1V = passes(x_BT)
            logits_BV = logits_B1V[:, 0].float()
            probs_BV = filter_logits(logits_BV, self.temperature, self.top_p, self.top_k).softmax(-1)
            if self.temperature > 0:
                token_B1 = torch.cat([passes.draws.choose(row, probs_BV[row][None]) for row in range(B)])
                token_B1 = token_B1.to(x_BT.device)
            else:
                token_B1 = logits_BV.argmax(-1, keepdim=True)
            if self.max_thinking_tokens is not None and index >= self.max_thinking_tokens:
                assert self.end_think_token_id is not None
                thinking_B1 = ~(x_BT[:, P:] == self.end_think_token_id).any(1, keepdim=True)
                token_B1 = token_B1.masked_fill(thinking_B1, self.end_think_token_id)
            probability_B1 = probs_BV.gather(-1, token_B1)
            token_B1 = torch.where(ended_B[:, None], x_BT[:, -1:], token_B1)
            everywhere_B1 = torch.ones_like(token_B1, dtype=torch.bool)
            step = write_step(index, x_BT, x_BT.shape[1], token_B1, everywhere_B1, probability_B1, running_B=~ended_B)
            yield step
            x_BT = step.after_BT
            ended_B = ended_B | torch.isin(token_B1[:, 0], passes.end_ids)
            if bool(ended_B.all()):
                return


def check_thinking(most: int | None, end_token: int | None) -> None:
    """Raise an error for a limit of thinking without the token that ends it."""
    if most is not None and end_token is None:
        raise FloatLensError("max_thinking_tokens needs end_think_token_id, the token that ends thinking")
