"""How much vectors at the same positions change from one step to the next."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch


def compare_with_last(
    memory: dict[Hashable, Any], key: Hashable, first: int, now_BQC: torch.Tensor, length: int
) -> torch.Tensor:
    """Relative change and cosine (B, 2, length) of vectors compared with the previous step; stores `now_BQC` in their place.

    The relative change is |now − before| / |before|. NaN at a position that was not computed at both steps, and where a
    vector is zero. `first` is the position of the first vector.

    >>> memory = {}
    >>> _ = compare_with_last(memory, "keys", 0, torch.tensor([[[3.0, 4.0]]]), 1)
    >>> compare_with_last(memory, "keys", 0, torch.tensor([[[3.0, 0.0]]]), 1)
    tensor([[[0.8000],
             [0.6000]]])
    """
    now = now_BQC.detach().float()
    found = now.new_full((now.shape[0], 2, length), torch.nan)
    start, before = memory.get(key, (0, now[:, :0]))
    low, high = max(first, start), min(first + now.shape[1], start + before.shape[1])
    if low < high and before.shape[0] == now.shape[0] and before.shape[2] == now.shape[2]:
        a, b = before[:, low - start : high - start], now[:, low - first : high - first]
        size = a.norm(dim=-1)
        found[:, 0, low:high] = torch.where(size > 0, (b - a).norm(dim=-1) / size, torch.nan)
        product = size * b.norm(dim=-1)
        found[:, 1, low:high] = torch.where(product > 0, (a * b).sum(-1) / product, torch.nan)
    memory[key] = (first, now.clone())
    return found
