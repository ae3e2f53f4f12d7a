"""Nemotron-Labs-Diffusion's self-speculation: a block is drafted by diffusion, then verified autoregressively.

After `linear_spec_generate` of the hub's code; drafts and accepted tokens equal its own (tests/golden-modes). The text is
that of autoregressive decoding, in fewer passes. As published, it may exceed `max_new_tokens` by less than a block. One
difference: there is no thinking budget, for which the published code lets later passes read the end of thinking in place
of tokens that stay in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from floatlens.decode.blocks import Blocks
from floatlens.decode.nemotron import choose, propose
from floatlens.decode.network import Passes
from floatlens.decode.sampler import AT_LEAST_0, Sampler, register_sampler, setting
from floatlens.decode.step import Step, write_step


@register_sampler("nemotron-spec")
@dataclass(frozen=True)
class Speculation(Blocks):
    """Self-speculation, which has no number of steps. One Step per drafting or verifying pass; only those that verify
    commit tokens. The first token comes from the pass over the prompt, and is committed by the first step; one block is
    drafted even if that token ends the text.
    """

    batched: ClassVar[bool] = False
    run = Sampler.run  # a given text is neither drafted nor verified

    threshold: float = setting(
        0.0,
        "Masks of at least this confidence are drafted at once, else the best one; 0 drafts all in one pass.",
        AT_LEAST_0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", None)  # shared by all models of a comparison, but not used here

    @property
    def step_count(self) -> int:
        return self.max_new_tokens * (1 + (self.block_length if self.threshold else 1))

    @property
    def shifted(self) -> bool:
        return True  # tokens are committed by the causal pass

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions, with those that are drafted after the last token."""
        return self.max_new_tokens + self.block_length

    def guess(self, passes: Passes, logits_BLV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every position, and the probability of drawing it (B, L)."""
        scaled_BLV = logits_BLV.float() / (self.temperature or 1.0)
        return propose(scaled_BLV, float(self.temperature > 0), passes.draws)

    def begin_draft(self, passes: Passes, x_BT: torch.Tensor) -> torch.Tensor:
        """The sequence to draft: what is written, and masks after its last token up to the length of a block."""
        return passes.append_masks(x_BT, self.block_length - 1)

    def sample(self, passes: Passes) -> Iterator[Step]:
        ids_BP, mask = passes.ids_BP, passes.special.mask
        P, L, index = passes.P, self.block_length, 0
        passes.store(ids_BP, *self.place(passes, ids_BP, P))
        assert passes.before_B1V is not None
        first_B1, known_B1 = self.guess(passes, passes.before_B1V)
        x_BT, ended = torch.cat([ids_BP, first_B1], 1), bool(torch.isin(first_B1, passes.end_ids))
        while not index or (x_BT.shape[1] - P < self.max_new_tokens and not ended):
            start = x_BT.shape[1] - 1
            draft_BT = self.begin_draft(passes, x_BT)
            active = range(start, start + L)
            # The published code never ends if the mask token is the best guess; here a draft may keep masks.
            for _ in range(L - 1 if self.threshold else 1):
                masked_BL = draft_BT[:, start:] == mask
                if not bool(masked_BL.any()):
                    break
                logits_BLV = passes.run_block(draft_BT, start, *self.place(passes, draft_BT, start))
                token_BL, confidence_BL = self.guess(passes, logits_BLV)
                chosen_BL = choose(confidence_BL, masked_BL, 1, self.threshold) if self.threshold else masked_BL
                confidence_BL = confidence_BL.masked_fill(~masked_BL, torch.nan)
                step = write_step(index, draft_BT, start, token_BL, chosen_BL, confidence_BL, active=active)
                step.committed_BT[:] = False
                yield committing(step, P, known_B1) if not index else step
                draft_BT, index = step.after_BT, index + 1
            _, columns_BT = self.place(passes, draft_BT, start)
            token_BL, confidence_BL = self.guess(passes, passes.run_block(draft_BT, start, columns_BT, columns_BT))
            agrees_BL = token_BL[:, :-1] == draft_BT[:, start + 1 :]
            count = 1 + int(agrees_BL.long().cumprod(1).sum())
            over = torch.isin(token_BL[0, :count], passes.end_ids).nonzero()[:, 0].tolist()
            count, ended = (over[0] + 1, True) if over else (count, ended)
            token_BN, confidence_BN = token_BL[:, :count], confidence_BL[:, :count]
            all_BN = torch.ones_like(token_BN, dtype=torch.bool)
            step = write_step(index, x_BT, start + 1, token_BN, all_BN, confidence_BN, active=active)
            step = replace(step, tokens_BT=draft_BT)
            yield committing(step, P, known_B1) if not index else step
            x_BT, index = step.after_BT, index + 1


def committing(step: Step, column: int, confidence_B1: torch.Tensor) -> Step:
    """The step, which also commits the token that stands at a column."""
    step.committed_BT[:, column] = True
    step.confidence_BT[:, column] = confidence_B1[:, 0]
    return step
