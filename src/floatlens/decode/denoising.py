"""Samplers that denoise all new positions together, one forward pass per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatlens.decode.network import Passes, WholePasses
from floatlens.decode.sampler import Sampler, at_least, setting
from floatlens.decode.step import Step

# The candidates of a step in one row: their indices among the new positions, their tokens, the probabilities of these,
# and which of the candidates are committed.
Candidates = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Denoising(Sampler):
    """Denoises `max_new_tokens` masks after each prompt, or those of a tail. A subclass defines `choose`."""

    passes: ClassVar[type[Passes]] = WholePasses
    fills: ClassVar[bool] = True
    # Whether a mask token that the model commits is still a mask, as in the published samplers.
    masks_again: ClassVar[bool] = True

    steps: int | None = setting(None, "Number of denoising steps; one per token by default.", at_least(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", self.step_count)

    @property
    def step_count(self) -> int:
        return self.steps or self.max_new_tokens

    def choose(
        self, passes: Passes, row: int, index: int, logits_NV: torch.Tensor, masked_M: torch.Tensor
    ) -> Candidates:
        """The candidates of a step in one row, which has masks at these new positions."""
        raise NotImplementedError

    def sample(self, passes: Passes) -> Iterator[Step]:
        P, x_BT = passes.P, passes.with_masks()
        masked_BN = x_BT[:, P:] == passes.special.mask
        for index in range(self.step_count):
            _, logits_BNV = passes(x_BT)
            after_BT = x_BT.clone()
            committed_BT = torch.zeros_like(x_BT, dtype=torch.bool)
            confidence_BT = torch.full(x_BT.shape, torch.nan, dtype=torch.float32, device=x_BT.device)
            for row in range(passes.B):
                masked_M = masked_BN[row].nonzero()[:, 0]
                if not len(masked_M):
                    continue
                at_C, token_C, probability_C, chosen = self.choose(passes, row, index, logits_BNV[row], masked_M)
                confidence_BT[row, P + at_C] = probability_C.float()
                after_BT[row, P + at_C[chosen]] = token_C[chosen]
                committed_BT[row, P + at_C[chosen]] = True
            yield Step(index, x_BT, after_BT, committed_BT, confidence_BT, passes.active)
            x_BT = after_BT
            masked_BN = x_BT[:, P:] == passes.special.mask if self.masks_again else masked_BN & ~committed_BT[:, P:]
