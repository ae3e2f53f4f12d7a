"""Numbers of single heads that findings need: computed from a full trace, or kept in its summary.

They are the similarity of received attention between neighbouring steps and between the first and last quarter, and the
split of the anchors' score advantage into a norm part and an angle part.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def step_cosine(a: Array) -> Array:
    """Cosine between neighbouring steps' profiles, on positions that exist at both.

    >>> step_cosine(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    array([1., 0.])
    """
    before, after = np.nan_to_num(a[:-1]), np.where(np.isfinite(a[:-1]), np.nan_to_num(a[1:]), 0.0)
    dot = np.einsum("...t,...t->...", before, after)
    norms = [np.sqrt(np.einsum("...t,...t->...", x, x)) for x in (before, after)]
    return dot / np.maximum(norms[0] * norms[1], 1e-12)


def quarters_overlap(a: Array) -> Array:
    """Overlap of the mean received attention of the first quarter of the steps with that of the last (all but T).

    >>> a = np.zeros((4, 1, 1, 2)); a[:2, ..., 0] = 1; a[2:, ..., 0] = a[2:, ..., 1] = 0.5
    >>> quarters_overlap(a)
    array([[0.5]])
    """
    quarter = max(1, len(a) // 4)
    first, last = (np.nan_to_num(part).mean(axis=0, dtype=np.float64) for part in (a[:quarter], a[-quarter:]))
    return np.asarray(np.minimum(first, last).sum(axis=-1))


def group_mean(values: Array, group: Array) -> Array:
    """Mean over the last axis of the members of a group; NaN for an empty one.

    >>> group_mean(np.array([1.0, 3.0, np.nan]), np.array([True, True, False])).item()
    2.0
    """
    total = np.einsum("...t,...t->...", np.nan_to_num(values), group.astype(values.dtype))
    count = group.sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def split(score: Array, norm: Array, anchors: Array, others: Array) -> tuple[Array, Array, Array]:
    """Advantage of anchors over other keys, and its norm part and angle part, which sum to it.

    The Shapley value of the two factors, averaged over all pairs of an anchor and another key.

    >>> n, c = np.array([3.0, 1.0]), np.array([0.5, 0.5])
    >>> [x.item() for x in split(n * c, n, np.array([True, False]), np.array([False, True]))]
    [1.0, 1.0, 0.0]
    """
    # a key of norm zero has no direction; its score is zero for any cosine
    cosine = np.divide(score, norm, out=np.zeros_like(score), where=norm != 0)
    S, N, C = (tuple(group_mean(x, g) for g in (anchors, others)) for x in (score, norm, cosine))
    advantage = S[0] - S[1]
    cross = N[0] * C[1] - N[1] * C[0]
    return advantage, (advantage + cross) / 2, (advantage - cross) / 2
