"""The samplers of LLaDA2.0 and LLaDA2.1: a step commits all masks above a threshold, and at least the planned number.

After `generate` of LLaDA2MoeModelLM (arXiv 2512.15745 and 2602.08676); step histories equal their own (tests/golden-blocks).
The published code has no cache and runs over the whole sequence at each step; with a cache, only the current block is
computed. LLaDA2.1 may also replace written tokens of the current block. Its published loop never ends if the model's best
guess is the mask token itself; here a block ends when a pass changes nothing, or after a maximum number of passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.blocks import AlignedBlocks
from floatlens.decode.draws import above_or_best
from floatlens.decode.network import Passes
from floatlens.decode.sampler import AT_LEAST_0, AT_LEAST_1, RowWriter, register_sampler, setting
from floatlens.errors import FloatLensError

THRESHOLD = "Masks whose confidence is above it are committed at once."


@register_sampler("llada2")
@dataclass(frozen=True)
class LLaDA2(AlignedBlocks):
    """LLaDA2.0's sampler."""

    filters_greedy: ClassVar[bool] = False

    threshold: float = setting(0.95, THRESHOLD)
    minimal_topk: int = setting(1, "A block has at most max_new_tokens / minimal_topk steps.", AT_LEAST_1)
    eos_early_stop: bool = setting(False, "Stop within a block, once everything before its end token is written.")

    @property
    def passes_per_block(self) -> int:
        return max(1, min(super().passes_per_block, self.max_new_tokens // self.minimal_topk))

    def choose(
        self, logits_LV: torch.Tensor, probability_L: torch.Tensor, masked_L: torch.Tensor, count: int
    ) -> torch.Tensor:
        return above_or_best(probability_L, masked_L, count, self.threshold)

    def is_finished(self, passes: Passes, new_N: torch.Tensor) -> bool:
        return self.eos_early_stop and is_written_to_its_end(new_N, passes.end_ids, passes.special.mask)


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
    max_post_steps: int = setting(16, "Passes over a block that has no mask left.", AT_LEAST_0)
    num_to_transfer: int = setting(1, "Minimum number of masks that a pass commits.", AT_LEAST_1)
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

    def write(self, passes: Passes, row: int, first: int, x_T: torch.Tensor) -> RowWriter:
        mask, post_steps, x_L = passes.special.mask, 0, x_T[first:]
        written_L = torch.arange(first, len(x_T), device=x_T.device) >= passes.ends[row]
        for _ in range(self.passes_per_block):
            before_L = x_L.clone()
            masked_L = before_L == mask
            if not bool(masked_L.any()):
                post_steps += 1
                if post_steps > self.max_post_steps:
                    return
            token_L, probability_L = self.propose((yield None).float(), passes, row)
            filled_L = above_or_best(probability_L, masked_L, self.num_to_transfer, self.threshold)
            edited_L = written_L & ~masked_L & (token_L != before_L) & (probability_L > self.editing_threshold)
            chosen_L = filled_L | edited_L
            x_L[chosen_L] = token_L[chosen_L]
            yield chosen_L, probability_L.masked_fill(~(masked_L | edited_L), torch.nan)
            if x_L.equal(before_L) and (not bool(masked_L.any()) or self.temperature == 0):
                return

    def is_last(self, passes: Passes, new_N: torch.Tensor) -> bool:
        has_masks = bool((new_N == passes.special.mask).any())
        return self.eos_early_stop and not has_masks and super().is_last(passes, new_N)


def is_written_to_its_end(new_N: torch.Tensor, ends: torch.Tensor, mask: int) -> bool:
    """Whether there is an end token, and no mask before the first one."""
    found = torch.isin(new_N, ends).nonzero()[:, 0]
    return bool(len(found)) and bool((new_N[: int(found[0])] != mask).all())
