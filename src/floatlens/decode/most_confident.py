"""The positions that a diffusion sampler is most confident of."""

from __future__ import annotations

import torch


def most_confident(rank_N: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest values; of equal ones, the earlier.

    Probabilities that round to 1 are often equal. torch.topk leaves their order open and decides it by the length of the
    row, so that a padded batch would differ from its rows; the published samplers use it, and differ from this only there.

    >>> most_confident(torch.tensor([0.5, 1.0, 0.2, 1.0, 1.0]), 2)
    tensor([1, 3])
    """
    return rank_N.sort(descending=True, stable=True).indices[:count]
