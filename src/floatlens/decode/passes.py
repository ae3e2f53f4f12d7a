"""Passes: how a sampler runs a sequence, whether it samples, replays a given text, or scores one.

A sampler names its passes when it is registered. Those that run the whole sequence, and autoregressive ones, need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from floatlens.decode.network import Network
from floatlens.decode.step import SpecialTokens
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.models.family import Family


class Passes:
    """The forward passes over the sequences of a batch, one after another. A subclass defines the call.

    P         length of the prompts, including padding
    shifted   whether row j - 1 writes position j
    active    positions of the last pass's queries, as in `Step`
    """

    active: range | None = None

    def __init__(
        self,
        network: Network,
        ids_BP: torch.Tensor,
        real_BP: torch.Tensor | None,
        settings: Any,
        *,
        special: SpecialTokens,
        shifted: bool = False,
    ) -> None:
        self.network, self.real_BP, self.settings, self.special = network, real_BP, settings, special
        self.B, self.P = ids_BP.shape
        self.shifted = shifted

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Run a sequence; return the first column that the pass writes, and the logits (B, N, V) from there on."""
        raise NotImplementedError

    def end(self, column: int) -> int:
        """Length of the sequence whose pass writes this column."""
        return self.P + int(self.settings.max_new_tokens)

    def real(self, length: int) -> torch.Tensor | None:
        """True for the positions of a sequence that are not padding (B, T); None if nothing is padded."""
        if self.real_BP is None:
            return None
        return torch.cat([self.real_BP, self.real_BP.new_ones((self.B, length - self.P))], 1)


class WholePasses(Passes):
    """Passes over the whole sequence, without a cache."""

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        new = x_BT.shape[1] - self.P
        return self.P, self.network.logits(x_BT, self.real(x_BT.shape[1]), new + self.shifted)[:, :new]


class CausalPasses(Passes):
    """The passes of an autoregressive model: each sequence is one token longer than the one before, whose keys are kept."""

    cache: Any = None

    def __call__(self, x_BT: torch.Tensor) -> tuple[int, torch.Tensor]:
        logits_B1V, self.cache = self.network.extend(x_BT, self.real(x_BT.shape[1]), self.cache)
        return x_BT.shape[1], logits_B1V

    def end(self, column: int) -> int:
        return column


def find_passes(sampler: str, family: Family) -> type[Passes] | None:
    """The passes of a sampler for a model of a family; None if they are not known."""
    from floatlens.decode.registry import SAMPLERS

    if (own := SAMPLERS[sampler].passes) is not None:
        return own
    if family.kind == "arm":
        return CausalPasses
    whole = not family.cached and family.attention in ("bidirectional", "two-way")
    return WholePasses if whole else None


def make_passes(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: Any,
    *,
    sampler: str,
    family: Family,
    special: SpecialTokens,
) -> Passes:
    """The passes with which a sampler runs given sequences of a batch."""
    kind = find_passes(sampler, family)
    if kind is None:
        raise FloatLensError(f"the {sampler} sampler cannot run given sequences; register it with passes=...")
    return kind(network, ids_BP, real_BP, settings, special=special, shifted=family.shifted)
