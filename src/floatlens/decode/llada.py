"""LLaDA's sampler: blocks from left to right, inside a block the most confident masks first.

After generate.py of ML-GSAI/LLaDA (arXiv 2502.09992); step histories equal its own (tests/golden).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.decode.draws import add_noise, most_confident, transfers
from floatlens.decode.network import Passes
from floatlens.decode.sampler import AT_LEAST_1, CFG_SCALE, REMASKING, Candidates, Denoising, register_sampler, setting
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError


@register_sampler("llada")
@dataclass(frozen=True)
class LLaDA(Denoising):
    """LLaDA's sampler; `steps` and `block_length` default to `max_new_tokens`."""

    block_length: int | None = setting(None, "Tokens per block; one block by default.", AT_LEAST_1)
    cfg_scale: float = CFG_SCALE
    remasking: str = REMASKING
    logits_eos_inf: bool = setting(False, "Never write the end-of-text token.")
    confidence_eos_eot_inf: bool = setting(False, "Write the end tokens after all others.")

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.max_new_tokens
        block = length if self.block_length is None else self.block_length
        object.__setattr__(self, "block_length", block)
        if length % block:
            raise FloatLensError(
                f"block_length {block} does not divide max_new_tokens {length}; "
                f"use max_new_tokens {-(-length // block) * block}, or another block_length"
            )
        steps, count = self.step_count, length // block
        if steps % count:
            raise FloatLensError(
                f"steps {steps} cannot be divided among {count} blocks of {block}; use steps {-(-steps // count) * count}"
            )

    def sample(self, passes: Passes) -> Iterator[Step]:
        if not passes.special.end_ids and (self.logits_eos_inf or self.confidence_eos_eot_inf):
            raise FloatLensError("logits_eos_inf and confidence_eos_eot_inf need an end token, but the model has none")
        return super().sample(passes)

    def choose(
        self, passes: Passes, row: int, index: int, logits_NV: torch.Tensor, masked_M: torch.Tensor
    ) -> Candidates:
        block = self.block_length or self.max_new_tokens
        steps_per_block = self.step_count // (self.max_new_tokens // block)
        number, inner = divmod(index, steps_per_block)
        start, end = number * block, (number + 1) * block
        at_start_N = passes.with_masks()[row, passes.P :] == passes.special.mask
        count = transfers(int(at_start_N[start:end].sum()), steps_per_block)[inner]
        end_ids, logits_NV = passes.special.end_ids, logits_NV.clone()
        if self.logits_eos_inf:
            logits_NV[:, end_ids[0]] = -torch.inf
        # The published sampler draws for the whole sequence, so each row skips the draws for its prompt.
        prompt = int(passes.real_BP[row].sum())
        noisy_NV = add_noise(logits_NV, self.temperature, passes.draws, row, prompt)
        token_N = noisy_NV.argmax(-1)
        if self.confidence_eos_eot_inf:
            # As published: the end token is lowered in the noised logits, which at temperature 0 are the logits themselves.
            noisy_NV[:, end_ids[0]] = -torch.inf
            if len(end_ids) > 1:  # the end of a turn
                logits_NV[:, end_ids[1]] = -torch.inf
        probability_N = logits_NV.softmax(-1).gather(-1, token_N[:, None])[:, 0]
        rank_N = probability_N
        if self.remasking == "random":
            rank_N = passes.draws.uniform(row, (prompt + len(token_N),))[prompt:].to(probability_N)
        rank_M = rank_N[masked_M].masked_fill(masked_M >= end, -torch.inf)
        return masked_M, token_N[masked_M], probability_N[masked_M], most_confident(rank_M, count)
