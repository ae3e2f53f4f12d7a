"""Slow and plain versions of what FloatLens computes, written independently, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pool(attention_TT: Array, spans: list[tuple[int, int]]) -> Array:
    """Attention summed over queries and keys of each pair of regions, rows normalised; an empty region's row is zero."""
    sums = np.array([[attention_TT[a:b, c:d].sum() for c, d in spans] for a, b in spans], dtype=np.float64)
    return sums / np.where(sums.sum(axis=1) > 0, sums.sum(axis=1), 1)[:, None]
