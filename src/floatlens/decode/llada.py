"""LLaDA's sampler: blocks from left to right, inside a block the most confident masks first.

After generate.py of ML-GSAI/LLaDA (arXiv 2502.09992); step histories equal its own (tests/golden).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.decode.draws import Draws, add_gumbel_noise, most_confident, transfers
from floatlens.decode.network import Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.settings import DenoisingSettings, at_least, cfg_scale, remasking, setting
from floatlens.decode.step import SpecialTokens, Step, write_step
from floatlens.errors import FloatLensError


@dataclass(frozen=True)
class LLaDASettings(DenoisingSettings):
    """Settings of LLaDA's sampler; `steps` and `block_length` default to `max_new_tokens`."""

    block_length: int | None = setting(None, "Tokens per block; one block by default.", at_least(1))
    cfg_scale: float = cfg_scale()
    remasking: str = remasking()
    logits_eos_inf: bool = setting(False, "Never write the end-of-text token.")
    confidence_eos_eot_inf: bool = setting(False, "Write the end tokens after all others.")

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.max_new_tokens
        block = length if self.block_length is None else self.block_length
        object.__setattr__(self, "block_length", block)
        if length % block:
            blocks = [n for n in range(1, length + 1) if length % n == 0]
            raise FloatLensError(
                f"block_length {block} does not divide max_new_tokens {length}; "
                f"use block_length {nearest(block, blocks)}, or max_new_tokens {-(-length // block) * block}"
            )
        steps, count = self.step_count, length // block
        if steps % count:
            works = [n for n in (steps // count * count, -(-steps // count) * count) if n]
            raise FloatLensError(
                f"steps {steps} cannot be divided among {count} blocks of {block}; use steps {nearest(steps, works)}"
            )


def nearest(value: int, works: list[int]) -> str:
    """The numbers below and above `value` that would work.

    >>> nearest(7, [1, 2, 4, 8])
    '4 or 8'
    """
    below = [n for n in works if n <= value][-1:]
    above = [n for n in works if n > value][:1]
    return " or ".join(str(n) for n in [*below, *above])


@register_sampler("llada", LLaDASettings)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: LLaDASettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per forward pass.

    Guidance (`cfg_scale`) runs a second row per prompt, with the prompt masked, in the same pass; rows 0..B-1 are the
    prompts themselves.
    """
    B, P = ids_BP.shape
    mask_id = special.mask
    if special.eos_id is None and (settings.logits_eos_inf or settings.confidence_eos_eot_inf):
        raise FloatLensError("logits_eos_inf and confidence_eos_eot_inf need an end token, but the model has none")
    length, block = settings.max_new_tokens, settings.block_length or settings.max_new_tokens
    draws = draws or Draws([settings.seed] * B)
    x_BT = torch.cat([ids_BP, ids_BP.new_full((B, length), mask_id) if tail_BN is None else tail_BN], 1)
    real_BT = None if real_BP is None else torch.cat([real_BP, real_BP.new_ones((B, length))], 1)
    prompt_BT = x_BT != mask_id
    lengths = [P] * B if real_BP is None else real_BP.sum(1).tolist()
    steps_per_block = settings.step_count // (length // block)

    for index in range(settings.step_count):
        number, inner = divmod(index, steps_per_block)
        start, end = P + number * block, P + (number + 1) * block
        if inner == 0:
            plan = [transfers(int(n), steps_per_block) for n in (x_BT[:, start:end] == mask_id).sum(1)]
        if settings.cfg_scale > 0:
            both = torch.cat([x_BT, x_BT.masked_fill(prompt_BT, mask_id)])
            mask = None if real_BT is None else torch.cat([real_BT, real_BT])
            with_prompt, without = network.logits(both, mask, length).chunk(2)
            logits_BNV = without + (settings.cfg_scale + 1) * (with_prompt - without)
        else:
            logits_BNV = network.logits(x_BT, real_BT, length)
        x0_BN, probability_BN, rank_BN = propose(logits_BNV, lengths, settings, draws, special)
        masked_BN = x_BT[:, P:] == mask_id
        rank_BN = rank_BN.masked_fill(~masked_BN, -torch.inf)
        rank_BN[:, end - P :] = -torch.inf
        committed_BN = torch.zeros_like(masked_BN)
        for row in range(B):
            committed_BN[row, most_confident(rank_BN[row], plan[row][inner])] = True
        committed_BN &= masked_BN  # a block with fewer masks than planned commits all of them
        step = write_step(index, x_BT, P, x0_BN, committed_BN, probability_BN.masked_fill(~masked_BN, torch.nan))
        yield step
        x_BT = step.after_BT


def propose(
    logits_BNV: torch.Tensor,
    prompts: list[int],
    settings: LLaDASettings,
    draws: Draws,
    special: SpecialTokens,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per position: the token to commit, its probability, and the rank by which positions are chosen (B, N).

    The published sampler draws for the whole sequence, so each row skips the draws for its prompt.
    """
    B, N, V = logits_BNV.shape
    logits_BNV = logits_BNV.clone()
    if settings.logits_eos_inf:
        logits_BNV[..., special.eos_id] = -torch.inf
    noisy_BNV = logits_BNV
    if settings.temperature > 0:
        noise_BNV = torch.empty(B, N, V, dtype=torch.float64)
        for row in range(B):
            draws.skip(row, prompts[row] * V, torch.float64)
            noise_BNV[row] = draws.uniform(row, (N, V), torch.float64)
        noisy_BNV = add_gumbel_noise(logits_BNV, noise_BNV, settings.temperature)
    x0_BN = noisy_BNV.argmax(-1)
    if settings.confidence_eos_eot_inf:
        # As published: the end token is lowered in the noised logits, which at temperature 0 are the logits themselves.
        noisy_BNV[..., special.eos_id] = -torch.inf
        if special.eot_id is not None:
            logits_BNV[..., special.eot_id] = -torch.inf
    probability_BN = logits_BNV.softmax(-1).gather(-1, x0_BN[..., None])[..., 0]
    if settings.remasking == "low_confidence":
        return x0_BN, probability_BN, probability_BN.clone()
    rank_BN = torch.stack([draws.uniform(row, (prompts[row] + N,))[-N:] for row in range(B)])
    return x0_BN, probability_BN, rank_BN.to(probability_BN)
