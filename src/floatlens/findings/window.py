"""Window: do anchors move, asked of the same queries and the same keys in every kind of model?

With all query rows an autoregressive model's anchors cannot move, because received attention is then a running mean; with
one writing row per step they must, because attention is local. A window is the rows of the last 8 written tokens, and its
keys are the positions more than 8 to the left of its first row: both exist in causal and in bidirectional models, and none
of the keys is a mask. Definition: `recipes/results/PLAN.md`.

Letters of shapes: W windows, L layers, Q query rows, T key positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from floatlens.anchors import find_anchors

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
ROWS = 8  # rows of a window, and the positions between its first row and its last key
FEWEST_KEYS, FEWEST_WINDOWS = 32, 8


class Moves(NamedTuple):
    """How far anchors move between windows, by layer.

    floating   mean total variation of the attention on anchors, normalised, over all pairs of windows
    moved      the same without normalising, so that a weak anchor counts less than a strong one
    without    share of pairs left out because one of the two has no anchor; above one half there is no floating
    """

    floating: Array
    moved: Array
    without: Array


def profile(rows_LQT: Array, first: int) -> Array:
    """Attention of a window on its keys, (layers, keys): every row renormalised over the keys, then the mean over rows.

    `rows_LQT` are the window's rows of attention, averaged over heads; `first` is the position of the first row.

    >>> profile(np.array([[[0.25, 0.25, 0.5], [0.1, 0.3, 0.6]]]), first=10).round(3)
    array([[0.375, 0.625]])
    """
    kept_LQT = np.asarray(rows_LQT, float)[..., : first - ROWS]
    return (kept_LQT / kept_LQT.sum(axis=-1, keepdims=True)).mean(axis=1)


def moves(profiles: Sequence[Array], rule: str = "sigma(3)") -> Moves | None:
    """Compare the profiles of disjoint windows, each pair on the keys of the earlier one; None if there are too few."""
    if len(profiles) < FEWEST_WINDOWS or profiles[0].shape[-1] < FEWEST_KEYS:
        return None
    floating, moved = [], []
    for earlier_LT, later_LT in combinations(profiles, 2):
        later_LT = later_LT[:, : earlier_LT.shape[-1]]
        one_LT, other_LT = (_on_anchors(a, rule) for a in (earlier_LT, later_LT / later_LT.sum(axis=-1, keepdims=True)))
        moved.append(abs(one_LT - other_LT).sum(axis=-1) / 2)
        with np.errstate(invalid="ignore"):  # 0 / 0 without anchors: no value
            shares = [a / a.sum(axis=-1, keepdims=True) for a in (one_LT, other_LT)]
        floating.append(abs(shares[0] - shares[1]).sum(axis=-1) / 2)
    floating_PL = np.array(floating)
    without_L = np.isnan(floating_PL).mean(axis=0)
    means_L = np.full(len(without_L), np.nan)
    there = without_L <= 0.5
    means_L[there] = np.nanmean(floating_PL[:, there], axis=0)
    return Moves(means_L, np.mean(moved, axis=0), without_L)


def _on_anchors(a_LT: Array, rule: str) -> Array:
    """The attention on anchors, 0 elsewhere."""
    return np.where(find_anchors(a_LT, rule, "bidirectional"), a_LT, 0.0)
