"""The statistics behind the paper's findings, as functions on plain arrays.

Every claim about arXiv 2601.07894 uses one of these. They do not depend on traces, models or figures, so the same function
measures a run, a test array and the published numbers (`recipes/results/facts.py`).

| letter | axis |
|---|---|
| S, L, H | step, layer, head |
| Q, T | query, key position |
| R, N, X | region, sample, level of a stress |

`a` is received attention, the column mean of the attention matrix, NaN where a position does not exist yet. `u` is the
column mean of row-uniform attention under the same mask, that is, of a model without any preference. `p` is the
anchor mass of a step, normalised over positions; a step without anchors is a row of zeros.
"""

from __future__ import annotations

from math import comb

import numpy as np
from scipy.stats import entropy

from floatlens.stats import NAN, Array

# Anchors: their positions and the attention they receive


def absorption(a: Array, anchors: Array, u: Array | None = None) -> Array:
    """Percent of attention that the anchors receive; with `u`, what they receive beyond uniform attention."""
    return 100 * np.where(anchors, a if u is None else a - u, 0.0).sum(axis=-1)


def anchor_mass(a: Array, anchors: Array) -> Array:
    """Received attention of the anchors, normalised over positions: `p`; zeros where there is no anchor."""
    return normalise(np.where(anchors, a, 0.0))


def normalise(mass: Array) -> Array:
    """Mass as shares of its sum (last axis); zeros where there is none."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)


def effective_positions(weights: Array) -> Array:
    """Effective number of attended positions (last axis): the exponential of the entropy."""
    return np.asarray(np.exp(entropy(np.nan_to_num(weights), axis=-1)))


# Drift over steps


def floating(p_ST: Array) -> float:
    """Mean total-variation distance of the anchor mass over all pairs of steps: 0 for a fixed sink, 1 if no anchor returns.

    Steps without anchors are left out; NaN if they are more than half. One move halfway gives 0.5·S / (S − 1).
    """
    there = has_anchors(p_ST)
    if there.mean() < 0.5 or there.sum() < 2:
        return NAN
    return _sum_over_pairs(p_ST[there]) / comb(int(there.sum()), 2)


def renewal(mass_ST: Array) -> float:
    """Total-variation distance between where the anchors' attention lies in the first and in the last quarter of the steps.

    `mass_ST` is the attention on anchors, not normalised, so that a step whose anchors are weak counts less. A quarter is
    S // 4 steps, at least one. NaN if a quarter has no anchors, or more than half of the steps have none.
    """
    quarter = max(1, len(mass_ST) // 4)
    early_T, late_T = mass_ST[:quarter].sum(axis=0), mass_ST[-quarter:].sum(axis=0)
    if len(mass_ST) < 2 or has_anchors(mass_ST).mean() < 0.5 or not early_T.any() or not late_T.any():
        return NAN
    return total_variation(normalise(early_T), normalise(late_T))


def reveal_null(a_ST: Array, revealed_ST: Array) -> Array:
    """Received attention if a token had the strength of its last step once it is revealed: the null of `floating`.

    All masks have the mean of all masks. Rows sum to 1.
    """
    hidden = float(a_ST[~revealed_ST].mean()) if not revealed_ST.all() else 0.0
    strength_T = np.where(revealed_ST[-1], a_ST[-1], hidden)
    return normalise(np.where(revealed_ST, strength_T, hidden))


def has_anchors(p: Array) -> Array:
    """True for the steps (all but the last axis) with anchor mass."""
    return np.nan_to_num(p).sum(axis=-1) > 0


def total_variation(p: Array, q: Array) -> float:
    """Half the summed absolute difference of two distributions."""
    return float(np.abs(p - q).sum() / 2)


def centre(a: Array) -> Array:
    """Centre of mass over positions (last axis); NaN where there is no mass."""
    mass = np.nan_to_num(a)
    total = mass.sum(axis=-1)
    return np.where(total > 0, mass @ np.arange(mass.shape[-1]) / np.where(total > 0, total, 1.0), np.nan)


def shift(a_ST: Array, masked_ST: Array, answer_length: int) -> float:
    """Movement of the centre of mass beyond that of `null_profile`, in shares of the answer's length."""
    return movement(a_ST, answer_length) - movement(null_profile(a_ST, masked_ST), answer_length)


def movement(a_ST: Array, answer_length: int) -> float:
    """Movement of the centre of mass from the first to the last step, in shares of the answer's length."""
    # not along a fitted line, which would report 1.5·d for one jump of size d halfway
    first, last = centre(a_ST[[0, -1]])
    return float(last - first) / answer_length


def null_profile(a_ST: Array, masked_ST: Array) -> Array:
    """Received attention that depends only on whether a position is masked: the null of `shift`.

    The mass observed on masks is spread evenly over the masks of that step, the rest evenly over the other positions that
    exist.
    """
    exists_ST = np.isfinite(a_ST)
    found_ST = np.zeros(a_ST.shape)
    for group_ST in (masked_ST & exists_ST, ~masked_ST & exists_ST):
        mass = np.where(group_ST, a_ST, 0.0).sum(axis=-1, keepdims=True)
        found_ST += np.where(group_ST, mass / np.maximum(group_ST.sum(axis=-1, keepdims=True), 1), 0.0)
    return np.where(exists_ST, found_ST, np.nan)


# Layers and tasks: distances between and within groups


def layer_distance(p_SLT: Array) -> tuple[float, float]:
    """Total-variation distance of the anchor mass between different layers, and within a layer.

    Both are means over pairs of *different* steps, so anchors that move in step in all layers give a difference of 0.
    Steps without anchors are left out; NaN where no pair remains.
    """
    there = has_anchors(p_SLT)
    within, n_within = _sums([p_SLT[there[:, layer], layer] for layer in range(p_SLT.shape[1])])
    at_once, n_at_once = _sums([p_SLT[step, there[step]] for step in range(len(p_SLT))])
    every, n_every = _sums([p_SLT[there]])
    n_between = n_every - n_within - n_at_once
    between = every - within - at_once
    return between / n_between if n_between else NAN, within / n_within if n_within else NAN


def length_matched_tasks(
    mass_NT: Array, tasks_N: Array, lengths_N: Array, *, resamples: int = 1999, seed: int = 0
) -> tuple[float, float, Array, float] | None:
    """Distances between and within tasks over pairs of samples of equal length; None without both kinds of pairs.

    Pairs share samples, so the interval of their difference uses the jackknife's pseudo-values, one per sample, which come
    third. Last comes the p-value of a permutation, which shuffles tasks among samples of equal length.
    """
    there = has_anchors(mass_NT)
    mass, tasks, lengths = mass_NT[there], tasks_N[there], lengths_N[there]
    equal_NN = (lengths[:, None] == lengths) & ~np.eye(len(mass), dtype=bool)
    apart_NN = np.array([np.abs(mass - row).sum(axis=-1) / 2 for row in mass]).reshape(len(mass), len(mass))

    def totals(labels: Array) -> tuple[Array, Array, Array, Array]:
        same = labels[:, None] == labels
        pairs = (equal_NN & ~same, equal_NN & same)
        sums = [np.where(pair, apart_NN, 0.0).sum(axis=1) for pair in pairs]
        return sums[0], pairs[0].sum(axis=1), sums[1], pairs[1].sum(axis=1)

    between, n_between, within, n_within = totals(tasks)
    used = np.flatnonzero(n_between + n_within > 0)
    if not n_between.sum() or not n_within.sum() or len(used) < 3:
        return None
    value = between.sum() / n_between.sum() - within.sum() / n_within.sum()
    pseudo = []
    for i in used:  # a pair is counted once in each of its two samples
        rest = [x.sum() - 2 * x[i] for x in (between, n_between, within, n_within)]
        without = rest[0] / rest[1] - rest[2] / rest[3] if rest[1] and rest[3] else np.nan
        pseudo.append(len(used) * value - (len(used) - 1) * without)
    rng, beyond = np.random.default_rng(seed), 0
    for _ in range(resamples):
        shuffled = tasks.copy()
        for length in np.unique(lengths):
            group = np.flatnonzero(lengths == length)
            shuffled[group] = tasks[rng.permutation(group)]
        b, n_b, w, n_w = (x.sum() for x in totals(shuffled))
        beyond += bool(n_b and n_w and b / n_b - w / n_w >= value - 1e-12)
    distances = float(between.sum() / n_between.sum()), float(within.sum() / n_within.sum())
    return *distances, np.array(pseudo), (1 + beyond) / (1 + resamples)


# Retrieval heads


def retrieval_depth(score_LH: Array, depth_L: Array | None = None) -> float:
    """Score-weighted mean depth of all heads, one half if scores do not depend on depth; NaN where no head scores.

    `depth_L` are the depths of the layers, from 0 to 1, if only some were recorded.
    """
    depth_L = np.arange(len(score_LH)) / max(len(score_LH) - 1, 1) if depth_L is None else depth_L
    total_L = np.where(np.isfinite(depth_L), np.nansum(score_LH, axis=1), 0.0)
    return float(total_L @ np.nan_to_num(depth_L) / total_L.sum()) if total_L.sum() > 0 else NAN


# Flow between regions


def flow_per_token(flow: Array, tokens_R: Array) -> Array:
    """Flow to each region (last axis) per token of that region; NaN for a region without tokens."""
    return np.divide(flow, tokens_R, out=np.full(np.shape(flow), np.nan), where=tokens_R > 0)


def largest_row_distance(rows: Array) -> float:
    """Largest total-variation distance between two rows; rows of NaN are left out."""
    there = rows[np.isfinite(rows).any(axis=-1)]
    return max((float(np.nansum(np.abs(there - row), axis=-1).max()) / 2 for row in there), default=NAN)


def rollout_while_rows_differ(flow_LRR: Array, least: float = 0.1, residual: bool = True) -> tuple[Array, int]:
    """Rollout with the residual to the last layer at which its rows still differ, and that layer.

    The largest distance between two rows cannot grow from layer to layer, because each new row is a mean of the old ones;
    once it falls below `least` total variation, the rollout no longer depends on the source. If this already happens in
    layer 0, the layer is −1 and the rollout is the identity. Without the residual, all layers are rolled out. Regions that
    do not exist (NaN) stay NaN; a region with a column but no row (NaN) keeps the flow that it receives.
    """
    no_row, no_column = (np.asarray(~np.isfinite(flow_LRR).any(axis=axes)) for axes in ((0, 2), (0, 1)))
    identity = np.eye(flow_LRR.shape[-1])
    through, reached = identity, -1
    for layer, flow_RR in enumerate(np.nan_to_num(flow_LRR.astype(np.float64))):
        following = normalise((flow_RR + identity) / 2 if residual else flow_RR + np.diag(no_row)) @ through
        if residual and largest_row_distance(following[~no_row]) < least:
            break
        through, reached = following, layer
    return np.where(no_row[:, None] | no_column, np.nan, through), reached


def _sum_over_pairs(p_NT: Array) -> float:
    """Sum of the total-variation distances of all pairs of rows."""
    n = len(
        p_NT
    )  # of n sorted values of a position, the i-th (from 0) is the larger of i pairs, the smaller of n − 1 − i
    return max(float(((2 * np.arange(n) - n + 1) @ np.sort(p_NT, axis=0)).sum()) / 2, 0.0)


def _sums(groups: list[Array]) -> tuple[float, int]:
    """Summed distances and number of pairs within each of the groups."""
    return sum(_sum_over_pairs(group) for group in groups), sum(comb(len(group), 2) for group in groups)
