"""The sampler of A2D models with shifted logits: a pass over the whole sequence per step, row j - 1 writes position j."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from floatlens.decode.draws import Draws
from floatlens.decode.most_certain import MostCertainSettings, denoise
from floatlens.decode.network import Network
from floatlens.decode.registry import register_sampler
from floatlens.decode.replay import WholePasses
from floatlens.decode.special_tokens import SpecialTokens
from floatlens.decode.step import Step


@register_sampler("a2d-shifted", MostCertainSettings)
def sample(
    network: Network,
    ids_BP: torch.Tensor,
    real_BP: torch.Tensor | None,
    settings: MostCertainSettings,
    *,
    special: SpecialTokens,
    draws: Draws | None = None,
    tail_BN: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Denoise `max_new_tokens` masks after each prompt, or those of a tail, one Step per pass over the whole sequence."""
    passes = WholePasses(network, ids_BP, real_BP, settings.max_new_tokens, shifted=True)
    return denoise(passes, ids_BP, settings, special, draws, tail_BN)
