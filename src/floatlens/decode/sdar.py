"""SDAR's sampler: block by block, most certain positions first, with finished blocks in a cache.

After generate.py of JetAstra/SDAR (arXiv 2510.06303); step histories equal its own (tests/golden-blocks). Two differences:
a step never commits more positions than there are masks (the published code then overwrites known positions), and
`entropy_bounded` is the rule of the group's engine, since the published one raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from floatlens.decode.blocks import AlignedBlocks
from floatlens.decode.draws import above_or_best
from floatlens.decode.sampler import ABOVE_0, AT_LEAST_1, register_sampler, setting

STRATEGIES = ("low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded")


@register_sampler("sdar")
@dataclass(frozen=True)
class SDAR(AlignedBlocks):
    """SDAR's sampler."""

    block_length: int = setting(4, "Tokens per block; the model's own by default.", AT_LEAST_1)
    remasking_strategy: str = setting(
        "low_confidence_dynamic",
        "Which masks a step commits: those above confidence_threshold, and at least the planned number "
        "(low_confidence_dynamic); the planned number, by confidence (low_confidence_static) or from left to right "
        "(sequential); those of lowest entropy, while its sum stays below eb_threshold (entropy_bounded).",
        options=STRATEGIES,
    )
    confidence_threshold: float = setting(0.85, "Confidence above which low_confidence_dynamic commits a mask.")
    eb_threshold: float = setting(0.35, "Bound on the summed entropy, for entropy_bounded.", ABOVE_0)

    @property
    def passes_per_block(self) -> int:
        if self.steps_per_block is not None:
            return self.steps_per_block
        return min(super().passes_per_block, self.block_length)

    def choose(
        self, logits_LV: torch.Tensor, probability_L: torch.Tensor, masked_L: torch.Tensor, count: int
    ) -> torch.Tensor:
        dynamic, rank_L = self.remasking_strategy == "low_confidence_dynamic", probability_L
        if self.remasking_strategy == "sequential":
            rank_L = -torch.arange(len(masked_L), device=masked_L.device).float()
        elif self.remasking_strategy == "entropy_bounded":
            entropy_L = torch.distributions.Categorical(logits=logits_LV / (self.temperature or 1.0)).entropy()
            rank_L, ascending_M = -entropy_L, entropy_L[masked_L].sort().values
            count = max(1, int((ascending_M.cumsum(0) < self.eb_threshold).sum()))
        return above_or_best(rank_L, masked_L, count, self.confidence_threshold if dynamic else None)
