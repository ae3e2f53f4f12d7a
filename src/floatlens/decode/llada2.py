"""LLaDA2.0's sampler: block by block; a step commits all masks above a threshold, and at least the planned number.

After `generate` of LLaDA2MoeModelLM (arXiv 2512.15745); step histories equal its own (tests/golden-blocks). The published
code has no cache and runs over the whole sequence at each step; with a cache, only the current block is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from floatlens.decode.blocks import BlockPasses, RowCanvas, WholeBlockSettings, Writer, write_rows
from floatlens.decode.draws import Draws, transfers
from floatlens.decode.network import Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.sdar import above_or_best, propose
from floatlens.decode.settings import at_least, setting, top_k, top_p
from floatlens.decode.step import SpecialTokens, Step


@dataclass(frozen=True)
class LLaDA2Settings(WholeBlockSettings):
    """Settings of LLaDA2.0's sampler."""

    threshold: float = setting(0.95, "Masks whose confidence is above it are committed at once.")
    minimal_topk: int = setting(1, "A block has at most max_new_tokens / minimal_topk steps.", at_least(1))
    eos_early_stop: bool = setting(False, "Stop within a block, once everything before its end token is written.")
    top_p: float | None = top_p()
    top_k: int | None = top_k()

    @property
    def passes_per_block(self) -> int:
        return max(1, min(super().passes_per_block, self.max_new_tokens // self.minimal_topk))


@register_sampler("llada2", LLaDA2Settings, passes=BlockPasses, aligned=True)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: LLaDA2Settings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    ends: Sequence[int] | None = None,
) -> Iterator[Step]:
    """Write whole blocks after each prompt, one Step per denoising pass; a row stops after a block that has an end token.

    A block ends when it has no masks left or has used all its steps, in which case masks may remain.
    """
    drawn = draws or Draws([settings.seed] * len(ids_BP))
    top = (settings.top_p, settings.top_k) if settings.temperature > 0 else (None, None)

    def write(canvas: RowCanvas) -> Writer:
        for first in canvas.starts:
            for count in transfers(settings.block_length, settings.passes_per_block):
                masked_L = canvas.tokens(first) == special.mask
                if not bool(masked_L.any()):
                    break
                token_L, probability_L = propose((yield first), settings.temperature, *top, drawn, canvas.row)
                chosen_L = above_or_best(probability_L, masked_L, count, settings.threshold)
                canvas.write(first, token_L, chosen_L, probability_L.masked_fill(~masked_L, torch.nan))
                if settings.eos_early_stop and is_written_to_its_end(canvas.new_N, canvas.ends, special.mask):
                    return
            if canvas.has_end():
                return

    return write_rows(network, ids_BP, real_BP, settings, special, ends, write)


def is_written_to_its_end(new_N: torch.Tensor, ends: torch.Tensor, mask: int) -> bool:
    """Whether there is an end token, and no mask before the first one.

    >>> ends = torch.tensor([2])
    >>> is_written_to_its_end(torch.tensor([5, 2, 9, 9]), ends, 9), is_written_to_its_end(torch.tensor([9, 2]), ends, 9)
    (True, False)
    """
    found = torch.isin(new_N, ends).nonzero()[:, 0]
    return bool(len(found)) and bool((new_N[: int(found[0])] != mask).all())
