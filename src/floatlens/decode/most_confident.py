"""Select the positions with the highest confidence."""

from __future__ import annotations

import torch


def most_confident(rank_N: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest values; ties go to the earlier index.

    Probabilities that round to 1 are often equal. torch.topk does not define their order, which depends on the length of
    the row, so a padded batch would differ from its rows; the published samplers use it, and differ from this only in ties.

    >>> most_confident(torch.tensor([0.5, 1.0, 0.2, 1.0, 1.0]), 2)
    tensor([1, 3])
    """
    return rank_N.sort(descending=True, stable=True).indices[:count]
