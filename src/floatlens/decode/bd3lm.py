"""The sampler of block-causal A2D models (BD3LM): masks are appended and denoised block by block.

After dllm/core/samplers/bd3lm.py of ZHZisZZ/dllm, for models trained as in arXiv 2503.09573; step histories equal its own
(tests/golden-blocks). The published code pads the prompt on the left to whole blocks, so that the first new token begins a
block. Here blocks are counted from the end of the prompt instead, which gives the same attention without the padding.

As in the published code, padding is recognised by token id, so a generated pad token is invisible to later blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from floatlens.data.script import Script
from floatlens.decode.blocks import BlockPasses, BlockSettings, block_step
from floatlens.decode.draws import Draws
from floatlens.decode.most_confident import most_confident
from floatlens.decode.network import Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.replay import ReplaySettings, reveal_blocks
from floatlens.decode.settings import check_one_of
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError


@dataclass(frozen=True)
class BD3LMSettings(BlockSettings):
    """Settings of the BD3LM sampler; `right_shift_logits` is for models whose row j - 1 writes position j."""

    cfg_scale: float = 0.0
    remasking: str = "low_confidence"
    right_shift_logits: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of(self.remasking, "remasking", ("low_confidence", "random"))
        if self.cfg_scale < 0:
            raise FloatLensError(f"cfg_scale {self.cfg_scale} is below 0; use 0 for no guidance")

    @property
    def step_count(self) -> int:
        return self.blocks * min(self.passes_per_block, self.block_length)  # every step commits at least one token

    @property
    def shifted(self) -> bool:
        return self.right_shift_logits


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


def replay(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    scripts: Sequence[Script],
    settings: ReplaySettings,
    special: SpecialTokens,
) -> Iterator[Step]:
    """Reveal given texts block by block, counted from the end of the prompts."""
    P, block = ids_BP.shape[1], settings.block_length
    assert block is not None
    real_BT = ids_BP.new_ones((len(ids_BP), P + settings.max_new_tokens), dtype=torch.bool)
    if real_BP is not None:
        real_BT[:, :P] = real_BP

    def blocks_of(x_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return place(x_BT, real_BT[:, : x_BT.shape[1]], P, block, special)

    return reveal_blocks(network, ids_BP, scripts, block, special.mask, blocks_of, origin=P)


@register_sampler("bd3lm", BD3LMSettings, replay=replay)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: BD3LMSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
) -> Iterator[Step]:
    """Write `max_new_tokens` after each prompt, one Step per denoising pass, until every row has an end token.

    Guidance (`cfg_scale`) runs a second row per prompt, with the prompt masked, in the same pass. As published, a row that
    has ended is continued until all rows have ended; its later steps are not part of its trace.
    """
    B, P = ids_BP.shape
    block, guided = settings.block_length, settings.cfg_scale > 0
    draws = draws or Draws([settings.seed] * B)
    x_BT = ids_BP
    real_BT = torch.ones_like(x_BT, dtype=torch.bool) if real_BP is None else real_BP
    passes, index = BlockPasses(network, cache=settings.cache), 0
    running_B = torch.ones(B, dtype=torch.bool, device=x_BT.device)
    ends = torch.tensor(special.end_ids, dtype=torch.long, device=x_BT.device)

    for first in range(P, P + settings.max_new_tokens, block):
        length = min(block, P + settings.max_new_tokens - first)
        x_BT = torch.cat([x_BT, x_BT.new_full((B, length), special.mask)], 1)
        real_BT = torch.cat([real_BT, real_BT.new_ones((B, length))], 1)
        blocks_BT, positions_BT = place(x_BT, real_BT, P, block, special)
        for count in schedule(length, settings.passes_per_block):
            masked_BL = x_BT[:, first:] == special.mask
            if not bool(masked_BL.any()):
                break
            logits_BLV = block_logits(passes, x_BT, P, first, blocks_BT, positions_BT, settings, special, guided)
            token_BL, probability_BL, rank_BL = propose(logits_BLV.float(), settings, draws)
            rank_BL = rank_BL.masked_fill(~masked_BL, -torch.inf)
            chosen_BL = torch.zeros_like(masked_BL)
            for row in range(B):
                chosen_BL[row, most_confident(rank_BL[row], count)] = True
            chosen_BL &= masked_BL
            confidence_BL = probability_BL.masked_fill(~masked_BL, torch.nan)
            step = block_step(index, x_BT, first, token_BL, chosen_BL, confidence_BL, running_B)
            x_BT = step.after_BT
            yield step
            index += 1
        running_B = running_B & ~torch.isin(x_BT[:, P:], ends).any(1)
        if not bool(running_B.any()):
            return


def place(
    x_BT: torch.Tensor, real_BT: torch.Tensor, prompt: int, block: int, special: SpecialTokens
) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and position of each token (B, T): blocks by column, so that one begins after the prompt; positions by row."""
    valid_BT = real_BT if special.pad_id in special.end_ids else real_BT & (x_BT != special.pad_id)
    columns_T = torch.arange(x_BT.shape[1], device=x_BT.device) + -prompt % block
    blocks_BT = (columns_T // block).expand_as(x_BT).masked_fill(~valid_BT, -1)
    return blocks_BT, (valid_BT.long().cumsum(-1) - 1).masked_fill(~valid_BT, 0)


def block_logits(
    passes: BlockPasses,
    x_BT: torch.Tensor,
    prompt: int,
    first: int,
    blocks_BT: torch.Tensor,
    positions_BT: torch.Tensor,
    settings: BD3LMSettings,
    special: SpecialTokens,
    guided: bool,
) -> torch.Tensor:
    """Logits (B, L, V) that write the block: with guidance, and shifted by one row for shifted models."""
    if guided:
        without_BT = x_BT.clone()
        hidden_BP = blocks_BT[:, :prompt] >= 0
        without_BT[:, :prompt] = x_BT[:, :prompt].masked_fill(hidden_BP, special.mask)
        x_BT = torch.cat([x_BT, without_BT])
        blocks_BT, positions_BT = blocks_BT.repeat(2, 1), positions_BT.repeat(2, 1)
    logits_BLV = passes.logits(x_BT, first, blocks_BT, positions_BT)
    if settings.right_shift_logits:
        assert passes.before_B1V is not None
        logits_BLV = torch.cat([passes.before_B1V, logits_BLV[:, :-1]], 1)
    if guided:
        with_prompt, without = logits_BLV.chunk(2)
        logits_BLV = without + (settings.cfg_scale + 1) * (with_prompt - without)
    return logits_BLV


def propose(
    logits_BLV: torch.Tensor, settings: BD3LMSettings, draws: Draws
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per position: the token to commit, its probability, and the rank by which positions are chosen (B, L)."""
    B, L, V = logits_BLV.shape
    noisy_BLV = logits_BLV
    if settings.temperature > 0:
        noise_BLV = torch.stack([draws.uniform(row, (L, V), torch.float64) for row in range(B)])
        noisy_BLV = logits_BLV.double().exp() / ((-noise_BLV.log()) ** settings.temperature).to(logits_BLV.device)
    token_BL = noisy_BLV.argmax(-1)
    probability_BL = logits_BLV.softmax(-1).gather(-1, token_BL[..., None])[..., 0]
    if settings.remasking == "low_confidence":
        return token_BL, probability_BL, probability_BL.clone()
    rank_BL = torch.stack([draws.uniform(row, (L,)) for row in range(B)])
    return token_BL, probability_BL, rank_BL.to(probability_BL)
