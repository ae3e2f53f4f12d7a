"""The samplers of LLaDA2.0 and LLaDA2.1: a step commits all masks above a threshold, and at least the planned number.

After `generate` of LLaDA2MoeModelLM (arXiv 2512.15745 and 2602.08676); step histories equal their own (tests/golden-blocks).
The published code has no cache and runs over the whole sequence at each step; with a cache, only the current block is
computed. LLaDA2.1 may also replace written tokens of the current block. Its published loop never ends if the model's best
guess is the mask token itself; here a block ends when a pass changes nothing, or after a maximum number of passes.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.blocks import AlignedBlocks, RowCanvas
from floatlens.decode.draws import above_or_best
from floatlens.decode.sampler import at_least, register_sampler, setting
from floatlens.errors import FloatLensError

THRESHOLD = "Masks whose confidence is above it are committed at once."


@register_sampler("llada2")
@dataclass(frozen=True)
class LLaDA2(AlignedBlocks):
    """LLaDA2.0's sampler."""

    filters_greedy: ClassVar[bool] = False

    threshold: float = setting(0.95, THRESHOLD)
    minimal_topk: int = setting(1, "A block has at most max_new_tokens / minimal_topk steps.", at_least(1))
    eos_early_stop: bool = setting(False, "Stop within a block, once everything before its end token is written.")

    @property
    def passes_per_block(self) -> int:
        return max(1, min(super().passes_per_block, self.max_new_tokens // self.minimal_topk))

    def choose(
        self, logits_LV: torch.Tensor, probability_L: torch.Tensor, masked_L: torch.Tensor, count: int
    ) -> torch.Tensor:
        return above_or_best(probability_L, masked_L, count, self.threshold)

    def is_finished(self, canvas: RowCanvas) -> bool:
        passes = canvas.passes
        return self.eos_early_stop and is_written_to_its_end(canvas.new_N, passes.end_ids, passes.special.mask)


@register_sampler("llada2.1")
@dataclass(frozen=True)
class LLaDA21(AlignedBlocks):
    """LLaDA2.1's sampler; the published sampler has no number of steps, so `steps` is not used.

    A position is committed whenever it receives a token.
    """

    revises: ClassVar[bool] = True
    filters_greedy: ClassVar[bool] = False

    threshold: float = setting(0.95, THRESHOLD)
    editing_threshold: float = setting(0.9, "A written token is replaced if another one is more probable than this.")
    max_post_steps: int = setting(16, "Passes over a block that has no mask left.", at_least(0))
    num_to_transfer: int = setting(1, "Minimum number of masks that a pass commits.", at_least(1))
    eos_early_stop: bool = setting(False, "Stop after a block that has an end token.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", None)  # shared by all models of a comparison, but not used here
        if self.steps_per_block is not None:
            raise FloatLensError(
                f"steps_per_block {self.steps_per_block} is not used by llada2.1, which denoises a block until it no "
                f"longer changes; pass num_to_transfer or max_post_steps"
            )

    @property
    def passes_per_block(self) -> int:
        # Each pass over masks commits at least one. The factor 2 leaves room for tokens that are edited back to a mask.
        return 2 * self.block_length + self.max_post_steps

    def write(self, canvas: RowCanvas) -> Generator[int, torch.Tensor, None]:
        mask = canvas.passes.special.mask
        for first in canvas.starts:
            post_steps = 0
            written_L = torch.arange(first, first + self.block_length, device=canvas.x_N.device) >= canvas.P
            for _ in range(self.passes_per_block):
                before_L = canvas.tokens(first)
                masked_L = before_L == mask
                if not bool(masked_L.any()):
                    post_steps += 1
                    if post_steps > self.max_post_steps:
                        break
                token_L, probability_L = self.propose((yield first), canvas)
                filled_L = above_or_best(probability_L, masked_L, self.num_to_transfer, self.threshold)
                edited_L = written_L & ~masked_L & (token_L != before_L) & (probability_L > self.editing_threshold)
                confidence_L = probability_L.masked_fill(~(masked_L | edited_L), torch.nan)
                canvas.write(first, token_L, filled_L | edited_L, confidence_L)
                unchanged = canvas.tokens(first).equal(before_L)
                if unchanged and (not bool(masked_L.any()) or self.temperature == 0):
                    break
            has_masks = bool((canvas.x_N[: first + self.block_length] == mask).any())
            if self.eos_early_stop and canvas.has_end() and not has_masks:
                return


def is_written_to_its_end(new_N: torch.Tensor, ends: torch.Tensor, mask: int) -> bool:
    """Whether there is an end token, and no mask before the first one."""
    found = torch.isin(new_N, ends).nonzero()[:, 0]
    return bool(len(found)) and bool((new_N[: int(found[0])] != mask).all())
