"""Slow and plain versions of what FloatLens computes, written independently, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def causal_baseline(length: int) -> Array:
    """Column mean of row-uniform attention under a causal mask: `u_j = (1/(j+1) + … + 1/T) / T`."""
    return np.cumsum(1 / np.arange(length, 0, -1))[::-1] / length


def find_anchors(a: Array, u: Array) -> Array:
    """Positions (last axis) whose `a − u` lies more than 3 standard deviations above its mean, and above 0.01 / T.

    An excess below 0.01 / T is rounding: under exactly uniform attention `a − u` is nothing else.
    """
    length = np.isfinite(a).sum(axis=-1, keepdims=True)
    mean, std = (f(a - u, axis=-1, keepdims=True) for f in (np.nanmean, np.nanstd))
    with np.errstate(invalid="ignore"):
        return np.asarray((a - u > mean + 3 * std) & ((a - u) * length > 0.01))


def wasserstein(p: Array, q: Array) -> Array:
    """1-Wasserstein distance of two distributions over positions (last axis), in positions."""
    return np.asarray(np.abs(np.cumsum(p - q, axis=-1))[..., :-1].sum(axis=-1))


def pool(attention_TT: Array, spans: list[tuple[int, int]]) -> Array:
    """Attention summed over queries and keys of each pair of regions, rows normalised; an empty region's row is zero."""
    sums = np.array([[attention_TT[a:b, c:d].sum() for c, d in spans] for a, b in spans], dtype=np.float64)
    return sums / np.where(sums.sum(axis=1) > 0, sums.sum(axis=1), 1)[:, None]
