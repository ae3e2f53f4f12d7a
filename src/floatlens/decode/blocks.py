"""Block-causal decoding: the block of each position, the keys it sees, and the forward pass over a block.

A position sees its own block and the blocks before it. Finished blocks never change, so their keys and values can be read
from a cache; without one, each pass runs over the whole sequence so far and gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.draws import filter_top_k_first, transfers
from floatlens.decode.network import Passes, count_blocks
from floatlens.decode.sampler import AT_LEAST_1, CACHE, TOP_K, TOP_P, RowWriter, Sampler, setting, write_rows
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError


def place_causally(passes: Passes, x_BT: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The places (see `Blocks.place`) of a causal sequence whose positions from `first` on also see each other."""
    real_BT = passes.real(x_BT.shape[1])
    columns_BT = torch.arange(x_BT.shape[1], device=x_BT.device).expand_as(x_BT)
    return columns_BT.clamp_max(first).masked_fill(~real_BT, -1), count_blocks(real_BT, 1)[1]


@dataclass(frozen=True)
class Blocks(Sampler):
    """A sampler that writes one block after another. What stands before a block sees only what stands before itself."""

    steps: int | None = setting(
        None, "Denoising steps of all blocks together, rounded up; one per token by default.", AT_LEAST_1
    )
    block_length: int = setting(32, "Tokens per block; the model's own by default.", AT_LEAST_1)
    steps_per_block: int | None = setting(None, "Denoising steps per block, instead of steps.", AT_LEAST_1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.steps_per_block is not None:
            raise FloatLensError(
                f"steps {self.steps} and steps_per_block {self.steps_per_block} are both given; pass only one of them"
            )

    def first(self, passes: Passes, column: int) -> int:
        """The column at which the block of a column begins."""
        return passes.P + (column - passes.P) // self.block_length * self.block_length

    def end(self, passes: Passes, column: int) -> int:
        return self.first(passes, column) + self.block_length

    def place(self, passes: Passes, x_BT: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The block of each position, -1 for padding, and its position for the rotary embedding (B, T)."""
        return place_causally(passes, x_BT, first)

    def run(self, passes: Passes, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        first = self.first(passes, x_BT.shape[1] - 1)
        return first, passes.run_block(x_BT, first, *self.place(passes, x_BT, first), getattr(self, "cache", True))

    @property
    def blocks(self) -> int:
        """Number of blocks of new tokens, if the first new token begins a block."""
        return -(-self.max_new_tokens // self.block_length)

    @property
    def passes_per_block(self) -> int:
        """The largest number of denoising passes over one block."""
        if self.steps_per_block is not None:
            return self.steps_per_block
        return self.block_length if self.steps is None else -(-self.steps // self.blocks)

    @property
    def step_count(self) -> int:
        return self.blocks * self.passes_per_block


@dataclass(frozen=True)
class AlignedBlocks(Blocks):
    """A sampler that writes whole blocks, counted from the start of the prompt. A subclass defines `choose`, or `write`.

    A row stops after a block that has an end token. A block ends when it has no masks left or has used all its steps, in
    which case masks may remain.
    """

    aligned: ClassVar[bool] = True
    filters_greedy: ClassVar[bool] = True  # whether top_p and top_k also change probabilities at temperature 0

    cache: bool = CACHE
    top_p: float | None = TOP_P
    top_k: int | None = TOP_K

    def first(self, passes: Passes, column: int) -> int:
        return column // self.block_length * self.block_length

    def place(self, passes: Passes, x_BT: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        return count_blocks(passes.real(x_BT.shape[1]), self.block_length)

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions: `max_new_tokens`, rounded up to the end of a block."""
        return -(prompt_length + self.max_new_tokens) % self.block_length + self.max_new_tokens

    def room(self, prompt_length: int, context: int) -> int:
        return context // self.block_length * self.block_length - prompt_length

    @property
    def step_count(self) -> int:
        # The prompt may end inside a block, so the new tokens may extend into one more block.
        return (self.blocks + (self.block_length > 1)) * self.passes_per_block

    def propose(self, logits_LV: torch.Tensor, passes: Passes, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every position of the block, including known ones, and its probability after filtering."""
        top = (self.top_p, self.top_k) if self.temperature > 0 or self.filters_greedy else (None, None)
        probs_LV = filter_top_k_first(logits_LV, self.temperature, *top).softmax(-1)
        if self.temperature > 0:
            token_L = passes.draws.choose(row, probs_LV)[:, 0].to(probs_LV.device)
        else:
            token_L = logits_LV.argmax(-1)
        return token_L, probs_LV.gather(-1, token_L[:, None])[:, 0]

    def choose(
        self, logits_LV: torch.Tensor, probability_L: torch.Tensor, masked_L: torch.Tensor, count: int
    ) -> torch.Tensor:
        """True for the masks that a step commits; `count` is the planned number."""
        raise NotImplementedError

    def write(self, passes: Passes, row: int, first: int, x_T: torch.Tensor) -> RowWriter:
        """Write the block of one row from `first` to the end of `x_T`, in place."""
        for count in transfers(self.block_length, self.passes_per_block):
            masked_L = x_T[first:] == passes.special.mask
            if not bool(masked_L.any()) or self.is_finished(passes, x_T[passes.ends[row] :]):
                return
            logits_LV = (yield None).float()
            token_L, probability_L = self.propose(logits_LV, passes, row)
            chosen_L = self.choose(logits_LV, probability_L, masked_L, count)
            x_T[first:][chosen_L] = token_L[chosen_L]
            yield chosen_L, probability_L.masked_fill(~masked_L, torch.nan)

    def is_finished(self, passes: Passes, new_N: torch.Tensor) -> bool:
        """Whether a row stops within a block."""
        return False

    def is_last(self, passes: Passes, new_N: torch.Tensor) -> bool:
        """Whether a row stops after the block that ends its new tokens."""
        return bool(torch.isin(new_N, passes.end_ids).any())

    def sample(self, passes: Passes) -> Iterator[Step]:
        """Write all rows with the same passes, one Step per pass.

        Rows are padded by whole blocks, so that the blocks of all rows begin at the same columns, while prompts end at
        different columns (`ends`; the rest of `ids_BP` is masks). A row that finishes a block before others waits: it is
        not running.
        """
        B, L, ends, index = passes.B, self.block_length, passes.ends, 0
        pads = (~passes.real_BP).sum(1).tolist()
        if any(pad % L for pad in pads):
            raise FloatLensError(f"rows must be padded by whole blocks of {L}; found the paddings {pads}")
        stops = [end + self.canvas(end - pad) for end, pad in zip(ends, pads, strict=True)]
        x_BN = passes.append_masks(passes.ids_BP, max(stops) - passes.P)
        for first in range(min(ends) // L * L, max(stops), L):
            rows = [row for row in range(B) if ends[row] // L * L <= first < stops[row]]
            x_BT = x_BN[:, : first + L]
            writers = {row: self.write(passes, row, first, x_BT[row]) for row in rows}
            index = yield from write_rows(passes, x_BT, first, writers, index)
            for row in rows:
                if self.is_last(passes, x_BN[row, ends[row] : first + L]):
                    stops[row] = first + L
