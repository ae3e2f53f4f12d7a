"""Claims of other papers that need one statistic by layer each: `softness`, `massive`, `values`, `locality`, `decision`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from floatlens.anchors import baseline
from floatlens.findings.definitions import retrieval_depth
from floatlens.findings.finding import declare_finding
from floatlens.findings.positions import anchors_of, answer_positions, profile, writing_profile
from floatlens.findings.samples import depths, halves, mean, mean_over
from floatlens.findings.tokens import mask_ids
from floatlens.stats import NAN, Array, spearman
from floatlens.trace.trace import Trace

NEAR, FAR = 8, 16  # positions
BINS = 8  # bins of the time until a token is written


@declare_finding()
def softness(trace: Trace) -> xr.Dataset:
    """Measure how much the most attended position moves, and how long a sink lasts.

    Sinks of diffusion models move (arXiv 2510.15731) and vary in position over the steps (arXiv 2602.17664). The soft sink
    score of a position is the sigmoid of its standardised attention, averaged over steps. To compare an MDM with an ARM,
    score and variance are those of the rows that write: the mean over all rows so far of an ARM could not move.
    """
    a, writing_SLT = profile(trace), writing_profile(trace)
    above_SLT = a.values - baseline(a.values, trace.attention_kind)
    top_SL, written_SL = top(above_SLT), top(writing_SLT)
    commonest_L = np.array([np.bincount(column).max() for column in top_SL.T])
    std_L = np.std(written_SL, axis=0) if len(written_SL) > 1 else np.full(written_SL.shape[1:], np.nan)
    return xr.Dataset(
        {
            "moves": ("layer", 1 - commonest_L / len(top_SL)),
            "spread": ("layer", std_L / writing_SLT.shape[-1]),
            "lasting": ("layer", soft_scores(writing_SLT).max(axis=-1)),
            "sink": ("layer", 100 * above_SLT[..., 0].mean(axis=0)),
        },
        coords={"layer": a["layer"]},
    )


def top(a: Array) -> Array:
    """Position with the most attention along the last axis."""
    return np.where(np.isfinite(a), a, -np.inf).argmax(axis=-1)


def soft_scores(a_SLT: Array) -> Array:
    """Sigmoid of the attention standardised over the positions of a step, mean over steps; 0 for positions to come."""
    a = np.asarray(a_SLT, np.float64)
    middle = mean_over(a, -1)[..., None]
    std = np.sqrt(mean_over((a - middle) ** 2, -1))[..., None]
    z = np.divide(a - middle, std, out=np.zeros_like(a), where=std > 0)
    score = np.where(np.isfinite(a), 1 / (1 + np.exp(-z)), 0.0)
    return score.mean(axis=0) if len(a) else np.full(a.shape[1:], np.nan)


# Massive activations


def largest_activations(part: xr.Dataset) -> dict[str, Any]:
    """The row of the table: the layer with the largest activation of one model."""
    largest = mean_over(part["largest"].values, 0)
    layer = int(np.nanargmax(largest))
    return {
        "largest / median": 10 ** float(largest[layer]),
        "at layer": int(part["layer"].values[layer]),
        "channel there": int(commonest(part["channel"].values[:, layer])),
        "largest norm / median norm": float(np.nanmax(mean_over(part["norm_ratio"].values, 0))),
        "at an anchor, beyond chance": mean(part["at_anchor"].values),
    }


@declare_finding(row=largest_activations)
def massive(trace: Trace, *, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure the largest activations of hidden states, their channels and positions, mean over steps.

    arXiv 2402.17762 found them in autoregressive models, at a few positions that then become attention sinks; arXiv
    2605.06366 found one dominant channel in the early layers of LLaDA. An activation is compared with the median of its own
    position. The input of a layer is the output of the previous one, so states are compared with the anchors of the next.
    """
    a, anchors_SLT = anchors_of(trace, rule)
    names = ("hidden_norm", "massive_ratio", "massive_channel")
    norm_SLT, ratio_SLT, channel_SLT = (trace.data[name].values.astype(np.float64) for name in names)
    largest_SL = np.log10(np.nanmax(ratio_SLT, axis=-1))
    one_channel_L = mean_over(share_of_commonest(channel_SLT), 0)
    shallow, deep = halves(one_channel_L, depths(trace, a["layer"].values))
    return xr.Dataset(
        {
            "largest": ("layer", mean_over(largest_SL, 0)),
            "peak": float(largest_SL.max(axis=1).mean()),
            "norm_ratio": ("layer", mean_over(np.nanmax(norm_SLT, -1) / np.nanmedian(norm_SLT, -1), 0)),
            "one_channel": ("layer", one_channel_L),
            "one_channel_shallow": shallow,
            "one_channel_deep": deep,
            "channel": ("layer", [commonest(channel_SLT[:, layer]) for layer in range(channel_SLT.shape[1])]),
            "at_anchor": ("layer", at_next_anchors(ratio_SLT, anchors_SLT, np.isfinite(a.values))),
        },
        coords={"layer": a["layer"]},
    )


def commonest(channels: Array) -> float:
    """The number that occurs most often; NaN if there is none."""
    there, counts = np.unique(channels[np.isfinite(channels)], return_counts=True)
    return float(there[counts.argmax()]) if len(there) else NAN


def share_of_commonest(channel_SLT: Array) -> Array:
    """Share of positions that have the commonest number of their step and layer (step, layer)."""
    common_SL = np.apply_along_axis(commonest, -1, channel_SLT)
    return mean_over(np.where(np.isfinite(channel_SLT), channel_SLT == common_SL[..., None], np.nan), -1)


def at_next_anchors(ratio_SLT: Array, anchors_SLT: Array, there_SLT: Array) -> Array:
    """Share of steps at which the largest position of a layer is an anchor of the next one, minus chance (layer).

    Chance is the share of positions that are anchors. NaN for the last layer.
    """
    top_SLT = top(ratio_SLT)[:, :-1, None]
    hit_SL = np.take_along_axis(anchors_SLT[:, 1:], top_SLT, axis=-1)[..., 0]
    chance_SL = anchors_SLT[:, 1:].sum(axis=-1) / there_SLT[:, 1:].sum(axis=-1)
    return np.append((hit_SL - chance_SL).mean(axis=0), np.nan)


@declare_finding()
def values(trace: Trace, *, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure the value norms of anchors and of other positions, mean over heads and the steps with anchors.

    A position that receives much attention and has a small value adds little: attention is parked there (arXiv 2410.10781
    for autoregressive models, 2601.19657 for diffusion models).
    """
    a, anchors_SLT = anchors_of(trace, rule)
    norm_SLT = trace.head_mean("value_norm").transpose("step", "layer", "position").values
    norm_SLT = np.where(np.isfinite(a.values), norm_SLT, np.nan)
    anchors, others = (mean_over(np.where(group, norm_SLT, np.nan), -1) for group in (anchors_SLT, ~anchors_SLT))
    both = np.isfinite(anchors + others)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = {"anchors": anchors, "others": others, "smaller": np.log2(others / anchors)}
    means = {name: ("layer", mean_over(np.where(both, values, np.nan), 0)) for name, values in numbers.items()}
    return xr.Dataset(means, coords={"layer": a["layer"]})


@declare_finding()
def locality(trace: Trace) -> xr.Dataset:
    """Measure the distance between queries and the keys they attend to, mean over heads and steps.

    arXiv 2511.21338 finds that masked diffusion models favour nearby context, and that many appended masks distract them.
    """
    names = ("distance", "near", "near_uniform", "mask_attention")
    distance_SLH, near_SLHR, even_SLHR, masks_SLHR = (trace.data[name].values.astype(float) for name in names)
    reach = [int(n) for n in trace.data["reach"].values]
    near, far = reach.index(NEAR), reach.index(FAR)
    far_S = has_far_masks(np.isin(trace.data["tokens"].values, mask_ids(trace)), FAR)
    far_SLH = np.where(far_S[:, None, None], masks_SLHR[..., far], np.nan)
    return xr.Dataset(
        {
            "distance": ("layer", mean_over(distance_SLH, (0, 2))),
            "near": ("layer", mean_over(near_SLHR - even_SLHR, (0, 2))[:, near]),
            "near_share": mean_over(near_SLHR[..., near], (0, 1, 2)),
            "near_uniform": mean_over(even_SLHR[..., near], (0, 1, 2)),
            "within": ("reach", mean_over(near_SLHR, (0, 1, 2))),
            "uniform": ("reach", mean_over(even_SLHR, (0, 1, 2))),
            "far_masks": ("layer", mean_over(far_SLH, (0, 2))),
            "masks": ("reach", mean_over(masks_SLHR, (0, 1, 2))),
        },
        coords={"layer": trace.data["layer"], "reach": reach},
    )


def has_far_masks(masked_ST: Array, far: int) -> Array:
    """Steps at which two masks are more than `far` positions apart."""
    reach = [np.ptp(np.flatnonzero(row)) if row.any() else 0 for row in masked_ST]
    return np.array(reach) > far


@declare_finding()
def decision(trace: Trace) -> xr.Dataset:
    """Measure where and when the tokens of the answer are decided, by the logit lens: the token that each layer predicts.

    A token is decided at the first layer from which it is the most likely token up to the last layer. arXiv 2508.19982 finds
    that diffusion models know their answer long before they write it. If retrieval heads fetch the answer, they should be
    just below the layer of decision.
    """
    layers = trace.data["layer"].values
    depth_L, leads = depths(trace, layers), leading(trace)
    decided_at = [layer for lead_SL in leads.values() if (layer := decision_layer(lead_SL[-1])) is not None]
    open_for_three = {position: lead_SL[:, -1] for position, lead_SL in leads.items() if len(lead_SL) > 2}
    before = list(open_for_three.values())
    decided_L, hit_L, heads_depth, decision_depth = np.full(len(layers), np.nan), np.full(len(layers), np.nan), NAN, NAN
    if decided_at:
        decided_L = (np.array(decided_at)[:, None] <= np.arange(len(layers))).sum(axis=0) / len(leads)
        decision_depth = float(depth_L[decided_at].mean())
    if "evidence_hit" in trace.data and np.isfinite(trace.data["evidence_hit"].values).any():
        hit_LH = mean_over(trace.data["evidence_hit"].values.astype(float), 0)
        heads_depth = retrieval_depth(hit_LH, depth_L)
        total = np.nansum(hit_LH)
        hit_L = np.nansum(hit_LH, axis=1) / total if total > 0 else hit_L
    return xr.Dataset(
        {
            "decision_depth": decision_depth,
            "below_decision": decision_depth - heads_depth,
            "decided": ("layer", decided_L),
            "hits": ("layer", hit_L),
            "heads_depth": heads_depth,
            "early": float(np.mean([leads_from_half(lead) for lead in before])) if before else NAN,
            "context": context_correlation(trace, open_for_three),
            "leads": ("elapsed", by_elapsed(before)),
        },
        coords={"layer": layers, "elapsed": (np.arange(BINS) + 0.5) / BINS},
    )


def leading(trace: Trace) -> dict[int, Array]:
    """For each token's position, whether it leads (step, layer) at the steps up to its commit that computed its row."""
    lens_SLT, final = trace.data["lens_token"].values, trace.final_tokens
    rows = np.flatnonzero(np.isfinite(lens_SLT).any(axis=(0, 1)))
    shift = 1 if len(rows) and rows[0] < trace.prompt_length else 0  # row j − 1 writes j, or row j does
    steps, committed = trace.data["step"].values, trace.data["committed_at"].values
    found = {}
    for position in answer_positions(trace):
        lens_SL = lens_SLT[steps <= committed[position], :, position - shift]
        lens_SL = lens_SL[np.isfinite(lens_SL).all(axis=1)]
        if len(lens_SL) and committed[position] in steps:
            found[int(position)] = lens_SL == final[position]
    return found


def context_correlation(trace: Trace, leads: Mapping[int, Array]) -> float:
    """Rank correlation over tokens of attention on what is not masked with the share of earlier steps at which they led.

    Attention is that of the row that writes the token, mean over layers, minus the share of positions that are not masked:
    tokens that are written late see more of them. NaN with fewer than four tokens.
    """
    if "received_writing" not in trace.data or len(leads) < 4:
        return NAN
    steps, committed = trace.data["step"].values.tolist(), trace.data["committed_at"].values
    rows_ST = mean_over(trace.data["received_writing"].transpose("step", "layer", "position").values, 1)
    beyond = []
    for position in leads:
        row_T, known_T = rows_ST[steps.index(committed[position])], committed < committed[position]
        there_T = np.isfinite(row_T)
        beyond.append(float(row_T[known_T & there_T].sum() - known_T[there_T].mean()))
    return spearman(beyond, [float(lead_S[:-1].mean()) for lead_S in leads.values()])


def decision_layer(lead_L: Array) -> int | None:
    """The first layer from which the token leads up to the last layer; None if it does not lead at the last layer."""
    if not lead_L[-1]:
        return None
    behind = np.flatnonzero(~lead_L)
    return int(behind[-1]) + 1 if len(behind) else 0


def leads_from_half(lead_S: Array) -> bool:
    """Whether a token leads at all steps of the second half before its commit; the last step is the commit."""
    return bool(lead_S[-(-(len(lead_S) - 1) // 2) :].all())


def by_elapsed(leads: list[Array]) -> Array:
    """Share of tokens that lead, by the share of the steps elapsed until their commit, in equal bins."""
    sums, counts = np.zeros(BINS), np.zeros(BINS)
    for lead_S in leads:
        bins = np.minimum((np.arange(len(lead_S)) / (len(lead_S) - 1) * BINS).astype(int), BINS - 1)
        np.add.at(sums, bins, lead_S)
        np.add.at(counts, bins, 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
