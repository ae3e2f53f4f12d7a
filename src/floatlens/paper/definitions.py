"""The statistics behind the paper's findings, as functions on plain arrays.

Every claim about arXiv 2601.07894 uses one of these. They do not depend on traces, models or figures, so the same function
measures a run, a test array and the published numbers.

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

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from floatlens.errors import FloatLensError
from floatlens.stats import spearman

Array: TypeAlias = np.ndarray[Any, Any]
NAN = float("nan")
ROUNDING = 0.01  # in units of 1/T: more than the rounding of float16, less than the excess of any anchor


# Baselines: attention without any preference


def causal_mask(length: int) -> Array:
    """Mask (query, key) in which each position sees itself and those before it.

    >>> causal_mask(3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return np.tri(length, dtype=bool)


def block_mask(length: int, block: int, prompt: int = 0) -> Array:
    """Mask (query, key) in which each position sees its own block and those before it; the prompt is one block.

    >>> block_mask(5, block=2, prompt=1).astype(int).tolist()
    [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    """
    number = (np.arange(length) - prompt) // block
    number[:prompt] = -1
    return number[:, None] >= number


def uniform_baseline(mask_QT: Array, rows_Q: Array | None = None) -> Array:
    """Column mean of row-uniform attention under a boolean mask: `u_j`.

    `rows_Q` selects query rows, such as the writing rows; rows that see nothing (padding) are left out.

    >>> uniform_baseline(causal_mask(2))
    array([0.75, 0.25])
    >>> uniform_baseline(np.ones((4, 4), bool))
    array([0.25, 0.25, 0.25, 0.25])
    """
    seen_Q = mask_QT.sum(axis=-1)
    used_Q = (seen_Q > 0) if rows_Q is None else (seen_Q > 0) & rows_Q
    if not used_Q.any():
        raise FloatLensError(
            f"none of the {len(seen_Q)} query rows is selected and sees a key; check the mask and the rows"
        )
    return np.asarray((mask_QT[used_Q] / seen_Q[used_Q, None]).mean(axis=0))


def causal_baseline(length: int) -> Array:
    """`uniform_baseline(causal_mask(length))` without the matrix: `u_j = (1/(j+1) + … + 1/T) / T`.

    >>> causal_baseline(2)
    array([0.75, 0.25])
    """
    return np.cumsum(1 / np.arange(length, 0, -1))[::-1] / length


def writing_rows(written_T: Array, *, shifted: bool) -> Array:
    """Query rows whose logits write the given positions: j itself, or j − 1 in shifted models and ARMs.

    >>> writing_rows(np.array([False, False, True]), shifted=True)
    array([False,  True, False])
    """
    if not shifted:
        return np.asarray(written_T, bool).copy()
    return np.append(np.asarray(written_T, bool)[1:], False)


# Anchors: their positions and the attention they receive


def find_anchors(a: Array, u: Array | None = None, k: float = 3.0) -> Array:
    """Positions (last axis) whose `a − u` lies more than k standard deviations above its mean.

    Without `u` the baseline is constant (full attention). An excess below 0.01/T is rounding, not an
    anchor: under exactly uniform attention `a − u` is nothing but rounding.

    >>> a = np.array([0.91] + [0.01] * 9 + [0.0] * 10)
    >>> np.flatnonzero(find_anchors(a))
    array([0])
    >>> u = causal_baseline(52)  # uniform attention of a causal model
    >>> bool(find_anchors(u).any()), bool(find_anchors(u, u).any())
    (True, False)
    """
    length = np.isfinite(a).sum(axis=-1, keepdims=True)
    excess = a - (1 / np.maximum(length, 1) if u is None else u)
    mean, std = (f(excess, axis=-1, keepdims=True) for f in (np.nanmean, np.nanstd))
    with np.errstate(invalid="ignore"):
        return np.asarray((excess > mean + k * std) & (excess * length > ROUNDING))


def absorption(a: Array, anchors: Array, u: Array | None = None) -> Array:
    """Percent of attention that the anchors receive; with `u`, what they receive beyond uniform attention.

    >>> a, anchors = np.array([0.7, 0.2, 0.1]), np.array([True, False, False])
    >>> round(float(absorption(a, anchors)), 6), round(float(absorption(a, anchors, np.full(3, 0.3))), 6)
    (70.0, 40.0)
    """
    return 100 * np.where(anchors, a if u is None else a - u, 0.0).sum(axis=-1)


def anchor_mass(a: Array, anchors: Array) -> Array:
    """Received attention of the anchors, normalised over positions: `p`; zeros where there is no anchor.

    >>> anchor_mass(np.array([[0.3, 0.1, 0.6], [0.4, 0.3, 0.3]]), np.array([[1, 1, 0], [0, 0, 0]], bool))
    array([[0.75, 0.25, 0.  ],
           [0.  , 0.  , 0.  ]])
    """
    mass = np.where(anchors, a, 0.0)
    total = mass.sum(axis=-1, keepdims=True)
    return np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)


def effective_positions(weights: Array) -> Array:
    """Effective number of attended positions (last axis): the exponential of the entropy.

    >>> effective_positions(np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
    array([4., 1.])
    """
    mass = np.nan_to_num(weights)
    share = mass / mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.exp(-(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=-1)))


# Drift over steps


def floating(p_ST: Array) -> float:
    """Mean total-variation distance of the anchor mass over all pairs of steps: 0 for a fixed sink, 1 if no anchor returns.

    Steps without anchors are left out (see `share_without_anchors`); NaN if they are more than half.
    One move halfway gives 0.5·S / (S − 1): the chance that two different steps lie on either side of it.

    >>> floating(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))  # 4 of 6 pairs
    0.6666666666666666
    """
    there = has_anchors(p_ST)
    if share_without_anchors(p_ST) > 0.5 or there.sum() < 2:
        return NAN
    return _sum_over_pairs(p_ST[there]) / _pairs(int(there.sum()))


def same_text_difference(mdm_X: Array, arm_X: Array) -> float:
    """A question's difference MDM − ARM on identical text: the mean over the texts X that have a value in both models.

    The texts are the MDM's own answer and the ARM's, each up to and including its end token. Both are replayed through both
    models from left to right, one token per step: the only order that an ARM has. A text's value is the floating of the
    writing rows over its tokens, mean over layers; over the smaller number of tokens of the two tokenizers, at least 4. So
    the text and the order of writing are the same for both models, and only attention differs. An MDM's own order is not
    used here; the primary variant, each model on its own answer, includes it.

    >>> round(same_text_difference(np.array([0.5, 0.9]), np.array([0.2, np.nan])), 6)
    0.3
    """
    apart_X = np.asarray(mdm_X, float) - np.asarray(arm_X, float)
    there_X = np.isfinite(apart_X)
    return float(apart_X[there_X].mean()) if there_X.any() else NAN


def renewal(p_ST: Array) -> float:
    """Total-variation distance between the mean anchor mass of the first and of the last quarter of the steps.

    A quarter is S // 4 steps, at least one. NaN if a quarter has no anchors, or more than half of the steps have none.

    >>> renewal(np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]))
    0.5
    """
    there = has_anchors(p_ST)
    quarter = max(1, len(p_ST) // 4)
    early, late = there[:quarter], there[-quarter:]
    if len(p_ST) < 2 or share_without_anchors(p_ST) > 0.5 or not early.any() or not late.any():
        return NAN
    return total_variation(p_ST[:quarter][early].mean(axis=0), p_ST[-quarter:][late].mean(axis=0))


def share_without_anchors(p_ST: Array) -> float:
    """Share of steps that have no anchor.

    >>> share_without_anchors(np.array([[0.0, 0.0], [0.0, 1.0]]))
    0.5
    """
    return float(1 - has_anchors(p_ST).mean())


def has_anchors(p: Array) -> Array:
    """True for the steps (all but the last axis) with anchor mass.

    >>> has_anchors(np.array([[0.0, 0.0], [0.0, 1.0]]))
    array([False,  True])
    """
    return np.nan_to_num(p).sum(axis=-1) > 0


def total_variation(p: Array, q: Array) -> float:
    """Half the summed absolute difference of two distributions.

    >>> total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    0.5
    """
    return float(np.abs(p - q).sum() / 2)


def centre(a: Array) -> Array:
    """Centre of mass over positions (last axis); NaN where there is no mass.

    >>> centre(np.array([0.0, 0.5, 0.5]))
    array(1.5)
    """
    mass = np.nan_to_num(a)
    total = mass.sum(axis=-1)
    return np.where(total > 0, mass @ np.arange(mass.shape[-1]) / np.where(total > 0, total, 1.0), np.nan)


def slope(series_S: Array) -> float:
    """Least-squares change per step over the steps that have a value; a description, see `shift`.

    >>> slope(np.array([1.0, np.nan, 5.0]))
    2.0
    """
    there = np.isfinite(series_S)
    if there.sum() < 2:
        return NAN
    step = np.arange(len(series_S))[there] - np.arange(len(series_S))[there].mean()
    return float(step @ series_S[there] / (step @ step))


def shift(a_ST: Array, masked_ST: Array, answer_length: int, u_ST: Array | None = None) -> float:
    """Movement of the centre of mass beyond that of `null_profile`, in shares of the answer's length.

    From the first to the last step, not along a fitted line: a line through one jump of size d halfway would report 1.5·d.

    >>> a = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])  # prompt of one position, answer of two
    >>> shift(a, np.array([[False, True, True], [False, False, False]]), answer_length=2)  # 0.75 → 1.25, null 0.75 → 1
    0.125
    """
    return movement(a_ST, answer_length) - movement(null_profile(a_ST, masked_ST, u_ST), answer_length)


def movement(a_ST: Array, answer_length: int) -> float:
    """Movement of the centre of mass from the first to the last step, in shares of the answer's length.

    >>> movement(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), answer_length=2)
    1.0
    """
    first, last = centre(a_ST[[0, -1]])
    return float(last - first) / answer_length


def null_profile(a_ST: Array, masked_ST: Array, u_ST: Array | None = None) -> Array:
    """Received attention that depends only on whether a position is masked: the null of `shift`.

    The mass observed on masks is spread evenly over the masks of that step, the rest evenly over the other positions that
    exist. With `u_ST` (causal or block attention) it is spread in proportion to `u` instead.

    >>> null_profile(np.array([[0.1, 0.5, 0.4, 0.0]]), np.array([[False, False, True, True]]))
    array([[0.3, 0.3, 0.2, 0.2]])
    """
    exists_ST = np.isfinite(a_ST)
    weight_ST = np.where(exists_ST, 1.0 if u_ST is None else u_ST, 0.0)
    found_ST = np.zeros(a_ST.shape)
    for group_ST in (masked_ST & exists_ST, ~masked_ST & exists_ST):
        mass = np.where(group_ST, a_ST, 0.0).sum(axis=-1, keepdims=True)
        within = np.where(group_ST, weight_ST, 0.0)
        total = within.sum(axis=-1, keepdims=True)
        found_ST += mass * np.divide(within, total, out=np.zeros_like(within), where=total > 0)
    return np.where(exists_ST, found_ST, np.nan)


def turnover(anchors: Array, exists: Array | None = None) -> Array:
    """Share of anchors replaced from one step (first axis) to the next: 1 − Jaccard, on positions that exist at both.

    A description: it depends on the number of steps, unlike `floating`. NaN where neither step has an anchor.

    >>> turnover(np.array([[1, 0, 0], [0, 1, 0]], bool))
    array([1.])
    """
    both = np.ones_like(anchors[1:]) if exists is None else exists[1:] & exists[:-1]
    before, after = anchors[:-1] & both, anchors[1:] & both
    union = (before | after).sum(axis=-1)
    return np.where(union > 0, 1.0 - (before & after).sum(axis=-1) / np.maximum(union, 1), np.nan)


def dwell(anchors: Array) -> Array:
    """Mean number of steps (first axis) that a position stays an anchor without a break; NaN without anchors.

    >>> dwell(np.array([[1, 0], [1, 0], [0, 1]], bool))
    array(1.5)
    """
    begins = np.concatenate([anchors[:1], anchors[1:] & ~anchors[:-1]])
    cells, runs = anchors.sum(axis=(0, -1)), begins.sum(axis=(0, -1))
    return np.where(runs > 0, cells / np.maximum(runs, 1), np.nan)


def wasserstein(p: Array, q: Array) -> Array:
    """1-Wasserstein distance of two distributions over positions (last axis), in positions.

    >>> wasserstein(np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0]))
    array(2.)
    """
    return np.asarray(np.abs(np.cumsum(p - q, axis=-1))[..., :-1].sum(axis=-1))


# Layers and tasks: distances between and within groups


class BetweenWithin(NamedTuple):
    """Mean distance between groups and within groups; `difference` is 0 if the groups do not matter."""

    between: float
    within: float

    @property
    def difference(self) -> float:
        return self.between - self.within


def layer_distance(p_SLT: Array) -> BetweenWithin:
    """Total-variation distance of the anchor mass between different layers against within a layer.

    Both are means over pairs of *different* steps, so anchors that move in step in all layers give a difference of 0.
    Steps without anchors are left out; NaN where no pair remains.

    >>> p = np.zeros((4, 2, 3))
    >>> p[:, 0, 0] = p[:, 1, 2] = 1  # each layer has its own fixed sink
    >>> layer_distance(p)
    BetweenWithin(between=1.0, within=0.0)
    """
    there = has_anchors(p_SLT)
    within, n_within = _sums([p_SLT[there[:, layer], layer] for layer in range(p_SLT.shape[1])])
    at_once, n_at_once = _sums([p_SLT[step, there[step]] for step in range(len(p_SLT))])
    every, n_every = _sums([p_SLT[there]])
    n_between = n_every - n_within - n_at_once
    return BetweenWithin(
        (every - within - at_once) / n_between if n_between else NAN, within / n_within if n_within else NAN
    )


def task_dependence(p_NT: Array, tasks_N: Array) -> BetweenWithin:
    """Total-variation distance of the anchor mass of samples of different tasks against samples of the same task.

    One row per sample (its mean over steps), all of the same length. Rows without anchors are left out.

    >>> task_dependence(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), np.array(["qa", "qa", "kv", "kv"]))
    BetweenWithin(between=1.0, within=0.0)
    """
    there = has_anchors(p_NT)
    rows, tasks = p_NT[there], np.asarray(tasks_N)[there]
    within, n_within = _sums([rows[tasks == task] for task in np.unique(tasks)])
    every, n_every = _sums([rows])
    n_between = n_every - n_within
    return BetweenWithin((every - within) / n_between if n_between else NAN, within / n_within if n_within else NAN)


def task_permutation_p(p_NT: Array, tasks_N: Array, *, resamples: int = 9999, seed: int = 0) -> float:
    """One-sided p-value of `task_dependence(...).difference > 0`: tasks are shuffled over samples.

    >>> p = np.repeat(np.eye(2), 6, axis=0)
    >>> task_permutation_p(p, np.repeat(["qa", "kv"], 6)) < 0.01
    True
    """
    there = has_anchors(p_NT)
    rows = p_NT[there]
    names, tasks = np.unique(np.asarray(tasks_N)[there], return_inverse=True)
    if len(names) < 2 or len(rows) == len(names):
        return NAN
    apart_NN = np.array([np.abs(rows - row).sum(axis=-1) / 2 for row in rows])
    rng = np.random.default_rng(seed)

    def sum_within(labels_PN: Array) -> Array:
        # the sum over all pairs does not change, so a smaller sum within tasks is a larger difference
        total = np.zeros(len(labels_PN))
        for task in range(len(names)):
            member_PN = (labels_PN == task).astype(float)
            total += ((member_PN @ apart_NN) * member_PN).sum(axis=1)
        return total

    observed = sum_within(tasks[None])[0]
    shuffled = rng.permuted(np.tile(tasks, (resamples, 1)), axis=1)
    return float((1 + (sum_within(shuffled) <= observed + 1e-9).sum()) / (1 + resamples))


# Retrieval heads


def retrieval_depth(score_LH: Array) -> float:
    """Score-weighted mean depth of all heads, 0 in the first and 1 in the last layer.

    One half if scores do not depend on depth.

    >>> retrieval_depth(np.array([[0.25, 0.0], [0.25, 0.0], [0.5, 1.0]]))  # (0.25·0.5 + 1.5·1) / 2
    0.8125
    """
    total_L = np.nansum(score_LH, axis=1)
    depth_L = np.arange(len(total_L)) / max(len(total_L) - 1, 1)
    return float(total_L @ depth_L / total_L.sum()) if total_L.sum() > 0 else NAN


def depth_correlation(score_LH: Array) -> float:
    """Rank correlation of a layer's number with its mean score.

    >>> depth_correlation(np.array([[0.0, 0.1], [0.2, 0.2], [0.9, 0.1]]))
    1.0
    """
    return spearman(np.arange(len(score_LH)), np.nanmean(score_LH, axis=1))


def deep_share(score_LH: Array, above: float) -> float:
    """Share of the heads with a score above a threshold that lie in the deep half.

    It depends on the threshold, so it is only a description. The middle layer of an odd number belongs to neither half.

    >>> deep_share(np.array([[0.2, 0.0], [0.6, 0.7]]), above=0.1)
    0.6666666666666666
    """
    count_L = (score_LH > above).sum(axis=1)
    half = len(count_L) // 2
    total = count_L[:half].sum() + count_L[-half:].sum()
    return float(count_L[-half:].sum() / total) if total else NAN


# Geometry


class Split(NamedTuple):
    """The anchors' advantage in score and its parts; they sum to it."""

    advantage: Array
    angle: Array
    norm: Array
    remainder: Array

    def shares(self) -> tuple[float, float, float]:
        """Angle, norm and remainder over the advantage, means over rows; they may exceed 1 or be negative."""
        whole = self.advantage.mean()
        angle, norm, remainder = (float(part.mean() / whole) for part in self[1:])
        return angle, norm, remainder


def split_advantage(score: Array, cos: Array, norm: Array, anchors_T: Array) -> Split:
    """The anchors' advantage in score over the other keys (last axis), split symmetrically into angle and norm.

    With c, m the mean cosine and norm product at the anchors and c', m' elsewhere, angle = (c − c')(m + m')/2 and
    norm = (m − m')(c + c')/2. The remainder is the covariance of the two factors among the keys that were averaged. One row
    per query, or column means. A key that misses one of the three (NaN) is left out of its row.

    >>> cos, norm = np.array([0.6, 0.2, 0.2]), np.array([4.0, 2.0, 2.0])
    >>> split = split_advantage(cos * norm, cos, norm, np.array([True, False, False]))  # 2.4 − 0.4
    >>> [round(float(part), 6) for part in split]
    [2.0, 1.2, 0.8, 0.0]
    """
    known = np.isfinite(score) & np.isfinite(cos) & np.isfinite(norm)

    def mean_of(values: Array, group: Array) -> Array:
        count = group.sum(axis=-1)
        return np.where(count > 0, np.where(group, values, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)

    (s, s_), (c, c_), (m, m_) = (
        (mean_of(values, known & anchors_T), mean_of(values, known & ~anchors_T)) for values in (score, cos, norm)
    )
    angle, length = (c - c_) * (m + m_) / 2, (m - m_) * (c + c_) / 2
    return Split(s - s_, angle, length, s - s_ - angle - length)


# Flow between regions


def flow_per_token(flow: Array, tokens_R: Array) -> Array:
    """Flow to each region (last axis) per token of that region; NaN for a region without tokens.

    >>> flow_per_token(np.array([0.6, 0.4, 0.0]), np.array([30, 10, 0]))
    array([0.02, 0.04,  nan])
    """
    return np.divide(flow, tokens_R, out=np.full(np.shape(flow), np.nan), where=tokens_R > 0)


def largest_row_distance(rows: Array) -> float:
    """Largest total-variation distance between two rows; rows of NaN are left out.

    >>> largest_row_distance(np.array([[1.0, 0.0], [0.5, 0.5], [0.75, 0.25]]))
    0.5
    """
    there = rows[np.isfinite(rows).any(axis=-1)]
    return max((float(np.nansum(np.abs(there - row), axis=-1).max()) / 2 for row in there), default=NAN)


def rollout_while_rows_differ(flow_LRR: Array, least: float = 0.1, residual: bool = True) -> tuple[Array, int]:
    """Rollout with the residual to the last layer at which its rows still differ, and that layer.

    The largest distance between two rows cannot grow from layer to layer, because each new row is a mean of the old ones;
    once it falls below `least` total variation, the rollout no longer depends on the source. If this already happens in
    layer 0, the layer is −1 and the rollout is the identity. Without the residual, all layers are rolled out. Regions that
    do not exist (NaN) stay NaN; a region with a column but no row (NaN) keeps the flow that it receives.

    >>> rollout, layer = rollout_while_rows_differ(np.full((10, 2, 2), 0.5))  # rows differ by 1/2, 1/4, 1/8, 1/16 …
    >>> layer, rollout.tolist()
    (2, [[0.5625, 0.4375], [0.4375, 0.5625]])
    """
    no_row, no_column = (np.asarray(~np.isfinite(flow_LRR).any(axis=axes)) for axes in ((0, 2), (0, 1)))
    identity = np.eye(flow_LRR.shape[-1])
    through, reached = identity, -1
    for layer, flow_RR in enumerate(np.nan_to_num(flow_LRR.astype(np.float64))):
        mixed = (flow_RR + identity) / 2 if residual else flow_RR + np.diag(no_row)
        total = mixed.sum(axis=-1, keepdims=True)
        following = np.divide(mixed, total, out=np.zeros_like(mixed), where=total > 0) @ through
        if residual and largest_row_distance(following[~no_row]) < least:
            break
        through, reached = following, layer
    return np.where(no_row[:, None] | no_column, np.nan, through), reached


# Knowledge and stress


def gain_beyond_twice(open_mdm: Array, closed_mdm: Array, open_arm: Array, closed_arm: Array) -> Array:
    """`gain_MDM − 2·gain_ARM` per question, a gain being the score with passages minus the score without.

    >>> gain_beyond_twice(np.array([1.0, 1.0]), np.array([0.0, 0.0]), np.array([1.0, 0.0]), np.array([0.0, 0.0]))
    array([-1.,  1.])
    """
    return (open_mdm - closed_mdm) - 2 * (open_arm - closed_arm)


def ends_minus_middle(scores_NX: Array) -> Array:
    """Mean score with the gold passage first or last minus the mean over all positions between, per question.

    >>> ends_minus_middle(np.array([[1.0, 0.5, 0.0, 0.6]]))
    array([0.55])
    """
    if scores_NX.shape[-1] < 3:
        raise FloatLensError(
            f"ends minus middle needs at least 3 positions of the gold passage, not {scores_NX.shape[-1]}"
        )
    return scores_NX[..., [0, -1]].mean(axis=-1) - scores_NX[..., 1:-1].mean(axis=-1)


def _pairs(n: int) -> int:
    return n * (n - 1) // 2


def _sum_over_pairs(p_NT: Array) -> float:
    """Sum of the total-variation distances of all pairs of rows.

    By position: of n sorted values the i-th (from 0) is the larger of i pairs and the smaller of n − 1 − i.
    """
    n = len(p_NT)
    return max(float(((2 * np.arange(n) - n + 1) @ np.sort(p_NT, axis=0)).sum()) / 2, 0.0)


def _sums(groups: list[Array]) -> tuple[float, int]:
    """Summed distances and number of pairs within each of the groups."""
    return sum(_sum_over_pairs(group) for group in groups), sum(_pairs(len(group)) for group in groups)
