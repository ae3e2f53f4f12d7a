"""Nemotron-Labs-Diffusion's sampler: block by block after the prompt, on a causal cache of everything before the block.

After `generate` of the hub's code for nvidia/Nemotron-Labs-Diffusion; step histories equal its own (tests/golden-modes). The
pass that stores a finished block also predicts the token after it, with which the next block begins. A block ends when no
mask is left, or when an end token and everything before it is written; masks after it stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.autoregressive import check_thinking
from floatlens.decode.blocks import Blocks
from floatlens.decode.draws import Draws, most_confident, transfers
from floatlens.decode.llada2 import is_written_to_its_end
from floatlens.decode.network import Passes
from floatlens.decode.sampler import ABOVE_0, END_THINK, THINKING, register_sampler, setting
from floatlens.decode.step import Step, write_step


@register_sampler("nemotron")
@dataclass(frozen=True)
class Nemotron(Blocks):
    """Nemotron-Labs-Diffusion's sampler, with the published names and defaults: whole blocks after prompts of equal length.

    The first token of a block is committed by its first step. A block without masks still takes one pass. As published, a
    row that ends within a block ends the block for all rows, which is why the lens passes one prompt at a time.
    """

    batched: ClassVar[bool] = False

    max_thinking_tokens: int | None = THINKING
    end_think_token_id: int | None = END_THINK
    threshold: float | None = setting(
        None, "Masks of at least this confidence are committed at once; one per step by default.", ABOVE_0
    )
    causal_context: bool = setting(
        True, "Store the prompt and finished blocks causally, and begin a block with the token that this predicts."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_thinking(self.max_thinking_tokens, self.end_think_token_id)

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions: whole blocks."""
        return self.blocks * self.block_length

    def sample(self, passes: Passes) -> Iterator[Step]:
        P, x_BT, index, mask = passes.P, passes.ids_BP, 0, passes.special.mask
        for first in range(P, P + self.canvas(P), self.block_length):
            begun_BL, known_BL = self.begin_block(passes, x_BT)
            x_BT, fresh_BL = torch.cat([x_BT, begun_BL], 1), begun_BL != mask
            for count in transfers(int((~fresh_BL).sum(1).max()), self.passes_per_block):
                masked_BL = x_BT[:, first:] == mask
                if not bool((masked_BL | fresh_BL).any()):
                    break
                token_BL, confidence_BL = self.guess(passes, passes(x_BT)[1])
                chosen_BL = fresh_BL | (choose(confidence_BL, masked_BL, count, self.threshold) & (token_BL != mask))
                token_BL = torch.where(fresh_BL, begun_BL, token_BL)
                confidence_BL = torch.where(fresh_BL, known_BL, confidence_BL.masked_fill(~masked_BL, torch.nan))
                step = write_step(index, x_BT, first, token_BL, chosen_BL, confidence_BL, active=passes.active)
                yield step
                x_BT, fresh_BL, index = step.after_BT, torch.zeros_like(fresh_BL), index + 1
                if any(is_written_to_its_end(new_N, passes.end_ids, mask) for new_N in x_BT[:, P:]):
                    break
            if bool(torch.isin(x_BT[:, P:], passes.end_ids).any(1).all()):
                return

    def place(self, passes: Passes, x_BT: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        blocks_BT, positions_BT = super().place(passes, x_BT, first)
        if not self.causal_context:  # the prompt is one block
            columns_T = torch.arange(x_BT.shape[1], device=x_BT.device)
            blocks_BT = (((columns_T - passes.P) // self.block_length).clamp_min(-1) + 1).expand_as(x_BT)
        return blocks_BT, positions_BT

    def guess(self, passes: Passes, logits_BLV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every position, and its probability without temperature (B, L)."""
        return propose(logits_BLV.float(), self.temperature, passes.draws)

    def begin_block(self, passes: Passes, x_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store what is finished; return the tokens with which the next block begins, and their probabilities (B, L)."""
        written = x_BT.shape[1] - passes.P
        block_BL = x_BT.new_full((passes.B, self.block_length), passes.special.mask)
        known_BL = torch.full(block_BL.shape, torch.nan, device=x_BT.device)
        passes.store(x_BT, *self.place(passes, x_BT, x_BT.shape[1]))
        if self.causal_context:
            assert passes.before_B1V is not None
            block_BL[:, :1], known_BL[:, :1] = self.guess(passes, passes.before_B1V)
        budget, end_think = self.max_thinking_tokens, self.end_think_token_id
        if budget is not None and end_think is not None and written + self.block_length > budget:
            thinking_B = ~(x_BT[:, passes.P :] == end_think).any(1)
            offset = max(0, budget - written)
            block_BL[thinking_B, offset], known_BL[thinking_B, offset] = end_think, torch.nan
        return block_BL, known_BL


def propose(logits_BLV: torch.Tensor, temperature: float, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for every position, and its probability without temperature (B, L)."""
    if temperature > 0:
        probs_BLV = (logits_BLV / temperature).softmax(-1)
        drawn = [draws.choose(row, probs_LV)[:, 0] for row, probs_LV in enumerate(probs_BLV)]
        token_BL = torch.stack(drawn).to(logits_BLV.device)
    else:
        token_BL = logits_BLV.argmax(-1)
    return token_BL, logits_BLV.softmax(-1).gather(-1, token_BL[..., None])[..., 0]


def choose(confidence_BL: torch.Tensor, masked_BL: torch.Tensor, count: int, threshold: float | None) -> torch.Tensor:
    """True for the masks that a step commits: the `count` best, with a threshold at least one, and all that reach it.

    >>> choose(torch.tensor([[0.4, 0.9, 0.6]]), torch.tensor([[True, False, True]]), 1, 0.5).tolist()
    [[False, False, True]]
    """
    rank_BL = confidence_BL.masked_fill(~masked_BL, -torch.inf)
    chosen_BL = torch.zeros_like(masked_BL) if threshold is None else confidence_BL >= threshold
    for row, rank_L in enumerate(rank_BL):
        chosen_BL[row, most_confident(rank_L, count if threshold is None else max(count, 1))] = True
    return chosen_BL & masked_BL
