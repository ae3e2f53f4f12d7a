"""What goes into every sampler, the special tokens, and what comes out of it, one step after another."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of a model's special tokens.

    mask_id   the token that means "not yet written"; None for an autoregressive model
    end_ids   tokens that end an answer: of the text first, then those of a turn
    pad_id    the token that pads shorter prompts
    """

    mask_id: int | None = None
    end_ids: tuple[int, ...] = ()
    pad_id: int = 0

    @property
    def mask(self) -> int:
        """The mask token of a model that must have one."""
        assert self.mask_id is not None, "a diffusion sampler was given no mask token"
        return self.mask_id


@dataclass(frozen=True)
class Step:
    """One forward pass. B rows; T positions, including padding.

    tokens_BT      ids of the input
    after_BT       ids after the commit; an autoregressive step is one position longer than its input
    committed_BT   positions of `after_BT` that received their token at this step
    confidence_BT  probability of the token that the sampler would commit there, NaN where it has no candidate
    active         positions of the step's queries; None for all queries of its pass, which end where `tokens_BT` ends
    running_B      rows that are still being written; None for all. The others are only kept in the batch
    """

    index: int
    tokens_BT: torch.Tensor
    after_BT: torch.Tensor
    committed_BT: torch.Tensor
    confidence_BT: torch.Tensor
    active: range | None = None
    running_B: torch.Tensor | None = None

    def first_query(self, count: int) -> int:
        """Position of the first of the step's `count` queries."""
        return self.tokens_BT.shape[1] - count if self.active is None else self.active.start


def write_step(
    index: int,
    x_BT: torch.Tensor,
    first: int,
    token_BN: torch.Tensor,
    chosen_BN: torch.Tensor,
    confidence_BN: torch.Tensor,
    *,
    active: range | None = None,
    running_B: torch.Tensor | None = None,
) -> Step:
    """The step that writes the chosen tokens from column `first` on; columns after the input are appended."""
    grown_BT = torch.cat([x_BT, token_BN[:, x_BT.shape[1] - first :]], 1)
    committed_BT = torch.zeros_like(grown_BT, dtype=torch.bool)
    committed_BT[:, first:] = chosen_BN
    confidence_BT = torch.full(grown_BT.shape, torch.nan, device=x_BT.device)
    confidence_BT[:, first:] = confidence_BN
    after_BT = grown_BT.clone()
    after_BT[:, first:] = torch.where(chosen_BN, token_BN, grown_BT[:, first:])
    if running_B is not None:
        committed_BT &= running_B[:, None]
        confidence_BT = confidence_BT.masked_fill(~running_B[:, None], torch.nan)
    return Step(index, x_BT, after_BT, committed_BT, confidence_BT, active, running_B)
