"""Block-causal decoding: which block a position is in, which keys it sees, and the forward pass over a block.

A position sees its own block and the blocks before it. Finished blocks never change, so their keys and values can be read
from a cache; without one, each pass runs over the whole sequence so far and gives the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from floatlens.decode.network import ForwardPass, Network
from floatlens.decode.settings import Settings, check_whole
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError


@dataclass(frozen=True)
class BlockSettings(Settings):
    """Settings that all block-causal samplers have.

    steps            denoising steps in all, shared evenly by the blocks and rounded up; by default one per token
    block_length     tokens per block; by default the model's own
    steps_per_block  denoising steps per block, instead of `steps`
    cache            whether the keys and values of finished blocks are kept in a cache
    """

    steps: int | None = None
    block_length: int = 32
    steps_per_block: int | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.block_length, "block_length")
        if self.steps is not None and self.steps_per_block is not None:
            raise FloatLensError(
                f"steps {self.steps} and steps_per_block {self.steps_per_block} are both given; give one of them"
            )
        if self.steps is not None:
            check_whole(self.steps, "steps")
        if self.steps_per_block is not None:
            check_whole(self.steps_per_block, "steps_per_block")

    @property
    def blocks(self) -> int:
        """Number of blocks that hold the new tokens, if the first of these begins a block."""
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
class WholeBlockSettings(BlockSettings):
    """Settings of samplers whose blocks are counted from the start of the prompt, and which write whole blocks."""

    def canvas(self, prompt_length: int) -> int:
        """Number of new positions: those asked for, rounded up to the end of a block."""
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
        # The prompt may end inside a block, so that the new tokens reach into one block more.
        return (self.blocks + (self.block_length > 1)) * self.passes_per_block


def visible(blocks_BT: torch.Tensor, start: int = 0) -> torch.Tensor:
    """True where a query from `start` on may see a key (B, Q, T). A position of block -1 (padding) sees only itself.

    >>> visible(torch.tensor([[-1, 0, 1, 1]])).int().tolist()
    [[[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]]]
    """
    query_BQ1, key_B1T = blocks_BT[:, start:, None], blocks_BT[:, None]
    itself_TT = torch.eye(blocks_BT.shape[1], dtype=torch.bool, device=blocks_BT.device)
    return ((query_BQ1 >= key_B1T) & (key_B1T >= 0)) | itself_TT[start:]


def count_blocks(real_BT: torch.Tensor, block_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The block of each position, counted from the first real token of its row, and its position (B, T).

    >>> count_blocks(torch.tensor([[False, True, True, True]]), 2)
    (tensor([[-1,  0,  0,  1]]), tensor([[0, 0, 1, 2]]))
    """
    positions_BT = real_BT.long().cumsum(-1) - 1
    return (positions_BT // block_length).masked_fill(~real_BT, -1), positions_BT.clamp_min(0)


class BlockPasses:
    """The forward passes over one block after another, with a cache of the finished ones or without."""

    def __init__(self, network: Network, *, cache: bool) -> None:
        from transformers import DynamicCache

        self.network = network
        self.cache: Any = DynamicCache() if cache else None
        self.final = 0  # positions before this one are final, and in the cache if there is one
        self.before_B1V: torch.Tensor | None = None

    def logits(
        self, x_BT: torch.Tensor, first: int, blocks_BT: torch.Tensor, positions_BT: torch.Tensor
    ) -> torch.Tensor:
        """Logits (B, L, V) of the block from `first` to the end of `x_BT`; those of the row before it are `before_B1V`."""
        length = x_BT.shape[1] - first
        done, cached = range(self.final, first), self.cache is not None
        if cached and done:
            self.before_B1V = self.network.run(
                ForwardPass(x_BT[:, :first], done.start, range(0), done),
                visible(blocks_BT[:, :first], done.start),
                keep=1,
                position_ids_BQ=positions_BT[:, done.start : first],
                cache=self.cache,
            )
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


def block_step(
    index: int,
    x_BT: torch.Tensor,
    first: int,
    tokens_BL: torch.Tensor,
    chosen_BL: torch.Tensor,
    confidence_BL: torch.Tensor,
    running_B: torch.Tensor | None = None,
) -> Step:
    """The step that writes the chosen tokens into the block from `first` to the end of `x_BT`."""
    after_BT = x_BT.clone()
    after_BT[:, first:] = torch.where(chosen_BL, tokens_BL, x_BT[:, first:])
    committed_BT = torch.zeros_like(x_BT, dtype=torch.bool)
    committed_BT[:, first:] = chosen_BL
    confidence_BT = torch.full(x_BT.shape, torch.nan, device=x_BT.device)
    confidence_BT[:, first:] = confidence_BL
    if running_B is not None:
        committed_BT &= running_B[:, None]
        confidence_BT = confidence_BT.masked_fill(~running_B[:, None], torch.nan)
    return Step(index, x_BT, after_BT, committed_BT, confidence_BT, range(first, x_BT.shape[1]), running_B)


class BlockCanvas:
    """One prompt, whole blocks of masks after it, and the steps that write them.

    x_BN      the sequence with all its masks (1, N)
    starts    first positions of the blocks that are written; the first block may begin with the end of the prompt
    """

    def __init__(
        self, network: Network, ids_BP: torch.Tensor, settings: WholeBlockSettings, special: SpecialTokens, sampler: str
    ) -> None:
        check_alone(ids_BP, sampler)
        self.P, self.block, self.mask = ids_BP.shape[1], settings.block_length, special.mask
        new = settings.canvas(self.P)
        self.x_BN = torch.cat([ids_BP, ids_BP.new_full((1, new), special.mask)], 1)
        self.starts = range(self.P // self.block * self.block, self.P + new, self.block)
        self.blocks_BN, self.positions_BN = count_blocks(torch.ones_like(self.x_BN, dtype=torch.bool), self.block)
        self.passes = BlockPasses(network, cache=settings.cache)
        self.ends = torch.tensor(special.end_ids, dtype=torch.long, device=ids_BP.device)
        self.index = 0

    @property
    def new_N(self) -> torch.Tensor:
        """The tokens after the prompt, masks included."""
        return self.x_BN[0, self.P :]

    def tokens(self, first: int) -> torch.Tensor:
        """The tokens of a block as they are now (L)."""
        return self.x_BN[0, first : first + self.block].clone()

    def logits(self, first: int) -> torch.Tensor:
        """Logits (L, V) of a block in float32."""
        last = first + self.block
        tensors = (part[:, :last] for part in (self.x_BN, self.blocks_BN, self.positions_BN))
        x_BT, blocks_BT, positions_BT = tensors
        return self.passes.logits(x_BT.clone(), first, blocks_BT, positions_BT)[0].float()

    def write(self, first: int, token_L: torch.Tensor, chosen_L: torch.Tensor, confidence_L: torch.Tensor) -> Step:
        """Write the chosen tokens into a block, and return the step that did so."""
        last = first + self.block
        step = block_step(
            self.index, self.x_BN[:, :last].clone(), first, token_L[None], chosen_L[None], confidence_L[None]
        )
        self.x_BN[:, :last] = step.after_BT
        self.index += 1
        return step

    def has_end(self) -> bool:
        """Whether an end token was written."""
        return bool(torch.isin(self.new_N, self.ends).any())


def check_alone(ids_BP: torch.Tensor, sampler: str) -> None:
    """Refuse a batch where rows would have their blocks at different columns."""
    if len(ids_BP) != 1:
        raise FloatLensError(f"the {sampler} sampler writes one prompt at a time, found {len(ids_BP)}")
