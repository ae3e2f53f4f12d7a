"""The sampler of block-causal A2D models (BD3LM): masks are appended and denoised block by block.

After dllm/core/samplers/bd3lm.py of ZHZisZZ/dllm, for models trained as in arXiv 2503.09573; step histories equal its own
(tests/golden-blocks). The published code pads the prompt on the left to whole blocks, so that the first new token begins a
block. Here blocks are counted from the end of the prompt instead, which gives the same attention without the padding.

As in the published code, padding is recognised by token id, so a generated pad token is invisible to later blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.decode.blocks import Blocks
from floatlens.decode.draws import above_or_best, add_noise
from floatlens.decode.network import Passes, guided
from floatlens.decode.sampler import CACHE, CFG_SCALE, REMASKING, RowWriter, register_sampler, setting, write_rows
from floatlens.decode.step import Step


def schedule(masks: int, steps: int) -> list[int]:
    """Number of positions that each step commits: from time t to s, a share 1 − s/t of the remaining masks.

    Steps that would commit none are left out.

    >>> schedule(8, 3), schedule(8, 5)
    ([3, 2, 3], [2, 2, 1, 2, 1])
    """
    counts, left = [], masks
    for step in range(steps, 0, -1):
        # In float32, through the share of clean tokens, as published: the rounding decides ties.
        t, s = (1 - (1 - torch.tensor(number / steps, dtype=torch.float32)) for number in (step, step - 1))
        count = min(left, round(left * float(1 - s / t)))
        if count:
            counts.append(count)
        left -= count
    return counts


@register_sampler("bd3lm")
@dataclass(frozen=True)
class BD3LM(Blocks):
    """The BD3LM sampler: writes until every row has an end token.

    Guidance (`cfg_scale`) runs a second row per prompt, with the prompt masked, in the same pass. As published, a row that
    has ended is continued until all rows have ended; its later steps are not part of its trace.
    """

    cache: bool = CACHE
    cfg_scale: float = CFG_SCALE
    remasking: str = REMASKING
    right_shift_logits: bool = setting(False, "Whether row j - 1 writes position j.")

    @property
    def step_count(self) -> int:
        return self.blocks * min(self.passes_per_block, self.block_length)  # every step commits at least one token

    @property
    def shifted(self) -> bool:
        return self.right_shift_logits

    def end(self, passes: Passes, column: int) -> int:
        return min(super().end(passes, column), passes.P + self.max_new_tokens)

    def place(self, passes: Passes, x_BT: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks by column and positions by row, as they are when a block is begun."""
        if passes.placed is None or passes.placed[0].shape[1] != x_BT.shape[1]:
            valid_BT = passes.real(x_BT.shape[1])
            if passes.special.pad_id not in passes.special.end_ids:
                valid_BT = valid_BT & (x_BT != passes.special.pad_id)
            columns_T = torch.arange(x_BT.shape[1], device=x_BT.device) + -passes.P % self.block_length
            blocks_BT = (columns_T // self.block_length).expand_as(x_BT).masked_fill(~valid_BT, -1)
            passes.placed = blocks_BT, (valid_BT.long().cumsum(-1) - 1).masked_fill(~valid_BT, 0)
        return passes.placed

    def run(self, passes: Passes, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        """A pass over a block, with guidance, and shifted by one row for shifted models."""
        first = self.first(passes, x_BT.shape[1] - 1)
        blocks_BT, positions_BT = self.place(passes, x_BT, first)
        if self.cfg_scale:
            without_BT, P = x_BT.clone(), passes.P
            without_BT[:, :P] = x_BT[:, :P].masked_fill(blocks_BT[:, :P] >= 0, passes.special.mask)
            x_BT = torch.cat([x_BT, without_BT])
            blocks_BT, positions_BT = blocks_BT.repeat(2, 1), positions_BT.repeat(2, 1)
        logits_BLV = passes.run_block(x_BT, first, blocks_BT, positions_BT, self.cache)
        if self.right_shift_logits:
            assert passes.before_B1V is not None
            logits_BLV = torch.cat([passes.before_B1V, logits_BLV[:, :-1]], 1)
        return first, guided(logits_BLV, self.cfg_scale) if self.cfg_scale else logits_BLV

    def sample(self, passes: Passes) -> Iterator[Step]:
        x_BT, index, P, end, ended = passes.ids_BP, 0, passes.P, passes.P + self.max_new_tokens, set[int]()
        for first in range(P, end, self.block_length):
            x_BT = passes.append_masks(x_BT, min(self.block_length, end - first))
            writers = {row: self.write(passes, row, x_BT[row, first:]) for row in range(passes.B)}
            index = yield from write_rows(passes, x_BT, first, writers, index, ended)
            ended = {row for row in range(passes.B) if bool(torch.isin(x_BT[row, P:], passes.end_ids).any())}
            if len(ended) == passes.B:
                return

    def write(self, passes: Passes, row: int, x_L: torch.Tensor) -> RowWriter:
        for count in schedule(len(x_L), self.passes_per_block):
            masked_L = x_L == passes.special.mask
            if not bool(masked_L.any()):
                return
            logits_LV = (yield None).float()
            token_L = add_noise(logits_LV, self.temperature, passes.draws, row).argmax(-1)
            probability_L = logits_LV.softmax(-1).gather(-1, token_L[:, None])[:, 0]
            rank_L = probability_L
            if self.remasking == "random":
                rank_L = passes.draws.uniform(row, (len(token_L),)).to(probability_L)
            committed_L = above_or_best(rank_L, masked_L, count, None)
            x_L[committed_L] = token_L[committed_L]
            yield committed_L, probability_L.masked_fill(~masked_L, torch.nan)
