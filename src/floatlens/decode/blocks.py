"""Block-causal decoding: the block of each position, the keys it sees, and the forward pass over a block.

A position sees its own block and the blocks before it. Finished blocks never change, so their keys and values can be read
from a cache; without one, each pass runs over the whole sequence so far and gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from floatlens.decode.draws import filter_top_k_first, transfers
from floatlens.decode.network import ForwardPass, Passes
from floatlens.decode.sampler import Sampler, at_least, setting, top_k, top_p
from floatlens.decode.step import Step, write_step
from floatlens.errors import FloatLensError


def visible(blocks_BT: torch.Tensor, start: int = 0) -> torch.Tensor:
    """True where a query from `start` on may see a key (B, Q, T). A position of block -1 (padding) sees only itself."""
    query_BQ1, key_B1T = blocks_BT[:, start:, None], blocks_BT[:, None]
    itself_TT = torch.eye(blocks_BT.shape[1], dtype=torch.bool, device=blocks_BT.device)
    return ((query_BQ1 >= key_B1T) & (key_B1T >= 0)) | itself_TT[start:]


def count_blocks(real_BT: torch.Tensor, block_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The block of each position, counted from the first real token of its row, and its position (B, T)."""
    positions_BT = real_BT.long().cumsum(-1) - 1
    return (positions_BT // block_length).masked_fill(~real_BT, -1), positions_BT.clamp_min(0)


class BlockPasses(Passes):
    """The passes over one block after another, with a cache of the finished ones or without.

    A sequence ends where its current block ends. A subclass may override `place`, which says what each position sees: all
    positions whose number is not larger than its own.
    """

    after_prompt = False  # whether blocks are counted from the end of the prompt, instead of its start

    cache: Any = None
    final = 0  # positions before this one are final, and in the cache if there is one
    before_B1V: torch.Tensor | None = None  # logits of the row before the current block

    def first(self, column: int) -> int:
        """The column at which the block of a column begins."""
        origin, block = self.P if self.after_prompt else 0, int(self.settings.block_length)
        return origin + (column - origin) // block * block

    def end(self, column: int) -> int:
        return self.first(column) + int(self.settings.block_length)

    def place(self, x_BT: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The block of each position, -1 for padding, and its position for the rotary embedding (B, T)."""
        real_BT = self.real(x_BT.shape[1])
        real_BT = torch.ones_like(x_BT, dtype=torch.bool) if real_BT is None else real_BT
        return count_blocks(real_BT, self.settings.block_length)

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        first = self.first(x_BT.shape[1] - 1)
        self.active = range(first, x_BT.shape[1])
        return first, self.run(x_BT, first, *self.place(x_BT, first))

    def store(self, x_BT: torch.Tensor, blocks_BT: torch.Tensor, positions_BT: torch.Tensor) -> None:
        """Read the finished positions that are not in the cache yet."""
        done = range(self.final, x_BT.shape[1])
        self.final = done.stop
        if self.cache is None:
            from transformers import DynamicCache

            self.cache = DynamicCache()
        if done:
            self.before_B1V = self.network.run(
                ForwardPass(x_BT, done.start, range(0), done),
                visible(blocks_BT, done.start),
                keep=1,
                position_ids_BQ=positions_BT[:, done.start :],
                cache=self.cache,
            )

    def run(self, x_BT: torch.Tensor, first: int, blocks_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Logits (B, L, V) of the block from `first` to the end of `x_BT`."""
        length, cached = x_BT.shape[1] - first, bool(self.settings.cache)
        done = range(self.final, first)
        if cached:
            self.store(x_BT[:, :first], blocks_BT[:, :first], positions_BT[:, :first])
        start = first if cached else 0
        logits_BQV = self.network.run(
            ForwardPass(x_BT, start, range(first, x_BT.shape[1]), range(0) if cached else done),
            visible(blocks_BT, start),
            keep=length if cached else min(length + 1, x_BT.shape[1]),
            position_ids_BQ=positions_BT[:, start:],
            cache=self.cache,
            store=False,
        )
        if not cached and first:
            self.before_B1V = logits_BQV[:, :1]
        self.final = first
        return logits_BQV[:, -length:]


@dataclass(frozen=True)
class Blocks(Sampler):
    """A sampler that writes one block after another."""

    passes: ClassVar[type[Passes]] = BlockPasses

    steps: int | None = setting(
        None, "Denoising steps of all blocks together, rounded up; one per token by default.", at_least(1)
    )
    block_length: int = setting(32, "Tokens per block; the model's own by default.", at_least(1))
    steps_per_block: int | None = setting(None, "Denoising steps per block, instead of steps.", at_least(1))
    cache: bool = setting(True, "Keep the keys and values of finished blocks in a cache.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.steps_per_block is not None:
            raise FloatLensError(
                f"steps {self.steps} and steps_per_block {self.steps_per_block} are both given; pass only one of them"
            )

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


class RowCanvas:
    """One prompt with whole blocks of masks after it, and the tokens written into them.

    x_N       the sequence with all its masks, without padding
    starts    first positions of the blocks that are written; the first block may begin with the end of the prompt
    row       index of the row in the batch
    """

    def __init__(self, passes: Passes, row: int, pad: int) -> None:
        settings: AlignedBlocks = passes.settings
        ids_P = passes.ids_BP[row, pad : passes.ends[row]]
        self.passes, self.row, self.P, self.block = passes, row, len(ids_P), settings.block_length
        new = settings.canvas(self.P)
        self.x_N = torch.cat([ids_P, ids_P.new_full((new,), passes.special.mask)])
        self.starts = range(self.P // self.block * self.block, self.P + new, self.block)
        none_L = torch.zeros(self.block, dtype=torch.bool, device=ids_P.device)
        self.written: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = (self.x_N[: self.block], none_L, none_L.float())

    @property
    def new_N(self) -> torch.Tensor:
        """The tokens after the prompt, including masks."""
        return self.x_N[self.P :]

    def tokens(self, first: int) -> torch.Tensor:
        """The current tokens of a block (L)."""
        return self.x_N[first : first + self.block].clone()

    def write(self, first: int, token_L: torch.Tensor, chosen_L: torch.Tensor, confidence_L: torch.Tensor) -> None:
        """Write the chosen tokens into a block."""
        self.written = (token_L, chosen_L, confidence_L)
        block_L = self.x_N[first : first + self.block]
        block_L[chosen_L] = token_L[chosen_L]

    def has_end(self) -> bool:
        """Whether an end token was written."""
        return bool(torch.isin(self.new_N, self.passes.end_ids).any())


@dataclass(frozen=True)
class AlignedBlocks(Blocks):
    """A sampler that writes whole blocks, counted from the start of the prompt. A subclass defines `choose`, or `write`.

    A row stops after a block that has an end token. A block ends when it has no masks left or has used all its steps, in
    which case masks may remain.
    """

    aligned: ClassVar[bool] = True
    filters_greedy: ClassVar[bool] = True  # whether top_p and top_k also change probabilities at temperature 0

    top_p: float | None = top_p()
    top_k: int | None = top_k()

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions: `max_new_tokens`, rounded up to the end of a block."""
        return -(prompt_length + self.max_new_tokens) % self.block_length + self.max_new_tokens

    def room(self, prompt_length: int, context: int) -> int:
        return context // self.block_length * self.block_length - prompt_length

    def fits(self, prompt_length: int, context: int | None) -> None:
        if context is not None and prompt_length < context and self.room(prompt_length, context) <= 0:
            raise FloatLensError(
                f"block_length {self.block_length} does not fit: the block after a prompt of {prompt_length} tokens "
                f"exceeds the model's context of {context}; use a smaller block_length or a shorter prompt"
            )
        super().fits(prompt_length, context)

    @property
    def step_count(self) -> int:
        # The prompt may end inside a block, so the new tokens may extend into one more block.
        return (self.blocks + (self.block_length > 1)) * self.passes_per_block

    def propose(self, logits_LV: torch.Tensor, canvas: RowCanvas) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every position of the block, including known ones, and its probability after filtering."""
        top = (self.top_p, self.top_k) if self.temperature > 0 or self.filters_greedy else (None, None)
        probs_LV = filter_top_k_first(logits_LV, self.temperature, *top).softmax(-1)
        if self.temperature > 0:
            token_L = canvas.passes.draws.choose(canvas.row, probs_LV)[:, 0].to(probs_LV.device)
        else:
            token_L = logits_LV.argmax(-1)
        return token_L, probs_LV.gather(-1, token_L[:, None])[:, 0]

    def choose(
        self, logits_LV: torch.Tensor, probability_L: torch.Tensor, masked_L: torch.Tensor, count: int
    ) -> torch.Tensor:
        """True for the masks that a step commits; `count` is the planned number."""
        raise NotImplementedError

    def is_finished(self, canvas: RowCanvas) -> bool:
        """Whether a row stops within a block."""
        return False

    def write(self, canvas: RowCanvas) -> Generator[int, torch.Tensor, None]:
        """Write a canvas: yield the first position of the next block, and receive its logits (L, V)."""
        mask = canvas.passes.special.mask
        for first in canvas.starts:
            for count in transfers(self.block_length, self.passes_per_block):
                masked_L = canvas.tokens(first) == mask
                if not bool(masked_L.any()):
                    break
                logits_LV = yield first
                token_L, probability_L = self.propose(logits_LV, canvas)
                chosen_L = self.choose(logits_LV, probability_L, masked_L, count)
                canvas.write(first, token_L, chosen_L, probability_L.masked_fill(~masked_L, torch.nan))
                if self.is_finished(canvas):
                    return
            if canvas.has_end():
                return

    def sample(self, passes: Passes) -> Iterator[Step]:
        """Write all rows with the same passes, one Step per pass.

        Rows are padded by whole blocks, so that the blocks of all rows begin at the same columns, while prompts end at
        different columns (`ends`; the rest of `ids_BP` is masks). A row that finishes a block before others waits: it is
        not running.
        """
        B, P, block = passes.B, passes.P, self.block_length
        pads = [0] * B if passes.real_BP is None else (~passes.real_BP).sum(1).tolist()
        if any(pad % block for pad in pads):
            raise FloatLensError(f"rows must be padded by whole blocks of {block}; found the paddings {pads}")
        rows = [RowCanvas(passes, row, pads[row]) for row in range(B)]
        N = max(pad + len(row.x_N) for pad, row in zip(pads, rows, strict=True))
        x_BN = passes.append_masks(passes.ids_BP, N - P)
        writers = [self.write(row) for row in rows]
        wanted = [next(one, None) for one in writers]
        index = 0
        while any(first is not None for first in wanted):
            columns = [None if first is None else pad + first for pad, first in zip(pads, wanted, strict=True)]
            first = min(column for column in columns if column is not None)
            x_BT = x_BN[:, : first + block].clone()
            _, logits_BLV = passes(x_BT)
            running = [row for row in range(B) if columns[row] == first]
            for row in running:
                try:
                    wanted[row] = writers[row].send(logits_BLV[row].float())
                except StopIteration:
                    wanted[row] = None
            running_B = torch.tensor([row in running for row in range(B)], device=x_BT.device)
            token_BL, chosen_BL, confidence_BL = (
                torch.stack(parts) for parts in zip(*(row.written for row in rows), strict=True)
            )
            written_BL = (token_BL, chosen_BL & running_B[:, None], confidence_BL)
            some_B = None if len(running) == B else running_B
            step = write_step(index, x_BT, first, *written_BL, active=passes.active, running_B=some_B)
            x_BN[:, : first + block] = step.after_BT
            yield step
            index += 1
