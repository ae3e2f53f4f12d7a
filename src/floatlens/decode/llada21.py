"""LLaDA2.1's sampler: like LLaDA2.0's, but every pass may also replace written tokens of the current block.

After `generate` of LLaDA2MoeModelLM in LLaDA2.1 (arXiv 2602.08676); step histories equal its own (tests/golden-blocks). The
published loop never ends if the model's best guess is the mask token itself; here a block ends when a pass changes nothing,
or after a maximum number of passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.blocks import BlockPasses, RowCanvas, WholeBlockSettings, Writer, write_rows
from floatlens.decode.draws import Draws
from floatlens.decode.network import Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.sdar import above_or_best, propose
from floatlens.decode.settings import at_least, setting, top_k, top_p
from floatlens.decode.step import SpecialTokens, Step
from floatlens.errors import FloatLensError


@dataclass(frozen=True)
class LLaDA21Settings(WholeBlockSettings):
    """Settings of LLaDA2.1's sampler; the published sampler has no number of steps, so `steps` is not used."""

    revises: ClassVar[bool] = True

    threshold: float = setting(0.95, "Masks whose confidence is above it are committed at once.")
    editing_threshold: float = setting(0.9, "A written token is replaced if another one is more probable than this.")
    max_post_steps: int = setting(16, "Passes over a block that has no mask left.", at_least(0))
    num_to_transfer: int = setting(1, "Minimum number of masks that a pass commits.", at_least(1))
    eos_early_stop: bool = setting(False, "Stop after a block that has an end token.")
    top_p: float | None = top_p()
    top_k: int | None = top_k()

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


@register_sampler("llada2.1", LLaDA21Settings, passes=BlockPasses, aligned=True, revises=True)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: LLaDA21Settings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    ends: Sequence[int] | None = None,
) -> Iterator[Step]:
    """Write whole blocks after each prompt, one Step per pass. A position is committed whenever it receives a token."""
    drawn = draws or Draws([settings.seed] * len(ids_BP))
    top = (settings.top_p, settings.top_k) if settings.temperature > 0 else (None, None)

    def write(canvas: RowCanvas) -> Writer:
        for first in canvas.starts:
            post_steps = 0
            written_L = torch.arange(first, first + settings.block_length, device=ids_BP.device) >= canvas.P
            for _ in range(settings.passes_per_block):
                before_L = canvas.tokens(first)
                masked_L = before_L == special.mask
                if not bool(masked_L.any()):
                    post_steps += 1
                    if post_steps > settings.max_post_steps:
                        break
                token_L, probability_L = propose((yield first), settings.temperature, *top, drawn, canvas.row)
                filled_L = above_or_best(probability_L, masked_L, settings.num_to_transfer, settings.threshold)
                edited_L = written_L & ~masked_L & (token_L != before_L) & (probability_L > settings.editing_threshold)
                confidence_L = probability_L.masked_fill(~(masked_L | edited_L), torch.nan)
                canvas.write(first, token_L, filled_L | edited_L, confidence_L)
                unchanged = canvas.tokens(first).equal(before_L)
                if unchanged and (not bool(masked_L.any()) or settings.temperature == 0):
                    break
            has_masks = bool((canvas.x_N[: first + settings.block_length] == special.mask).any())
            if settings.eos_early_stop and canvas.has_end() and not has_masks:
                return

    return write_rows(network, ids_BP, real_BP, settings, special, ends, write)
