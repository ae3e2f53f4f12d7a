"""What could be reused from one step to the next: keys and values (`cache`), and attention (`similarity`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from floatlens.findings.definitions import normalise
from floatlens.findings.finding import declare_finding
from floatlens.findings.positions import profile
from floatlens.findings.samples import depths, halves, mean, mean_over, require
from floatlens.stats import Array, spearman
from floatlens.trace.summarise import quarters_overlap
from floatlens.trace.trace import Trace

TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
TOLERANCE = 0.1  # a cosine of about 0.995
CHANGES = ("key_change", "value_change", "hidden_change")


def reusable(part: xr.Dataset) -> dict[str, Any]:
    """The row of the table: the share of positions below each tolerance."""
    return {f"< {t:g}": mean(part["reusable"].sel(threshold=t).values) for t in TOLERANCES}


@declare_finding(row=reusable)
def cache(trace: Trace) -> xr.Dataset:
    """Measure how much keys, values and hidden states change from step to step, mean over steps and positions.

    A bidirectional model computes all keys and values again at every step. Caches for diffusion models reuse those that
    hardly change (arXiv 2510.14973, 2604.12056). The change of a position is the mean of the relative changes of its key and
    of its value; positions that the model itself caches are not computed again and are not counted.
    """
    data = trace.data
    change = {name: data[name].values.astype(np.float64) for name in CHANGES}
    key_SLT, value_SLT = change["key_change"], change["value_change"]
    mean_SLT, largest_SLT = (key_SLT + value_SLT) / 2, np.maximum(key_SLT, value_SLT)
    a_SLT = profile(trace).values
    shallow, deep = halves(mean_over(mean_SLT, (0, 2)), depths(trace, data["layer"].values))
    by_step = np.array([share_below(largest_SLT, tolerance) for tolerance in TOLERANCES])
    return xr.Dataset(
        {
            **{name: ("layer", mean_over(values, (0, 2))) for name, values in change.items()},
            "shallow_change": shallow,
            "deep_change": deep,
            "deeper": np.log2(deep / shallow) if deep > 0 and shallow > 0 else np.nan,
            "reused": mean(by_step[TOLERANCES.index(TOLERANCE)]),
            "reusable": (("threshold", "layer"), mean_over(by_step, 1)),
            "reusable_by_step": (("step", "layer"), by_step[TOLERANCES.index(TOLERANCE)]),
            "rank": ("layer", rank_of_attended(a_SLT, mean_SLT)),
            "attended": ("layer", attended_correlation(a_SLT, mean_SLT)),
        },
        coords={"layer": data["layer"], "step": data["step"], "threshold": list(TOLERANCES)},
    )


def share_below(change: Array, tolerance: float) -> Array:
    """Share of the values along the last axis that lie below a tolerance; NaN where there are none."""
    return mean_over(np.where(np.isfinite(change), change < tolerance, np.nan), -1)


def rank_of_attended(a_SLT: Array, change_SLT: Array) -> Array:
    """Share of positions that change more than the previous step's most attended one, ties half, minus 1/2 (layer)."""
    found = np.full(change_SLT.shape[:2], np.nan)
    for step, layer in np.ndindex(found.shape):
        now, before = change_SLT[step, layer], a_SLT[step - 1, layer]
        there = np.isfinite(now) & np.isfinite(before)
        if step and there.sum() > 1:
            top = np.flatnonzero(there)[before[there].argmax()]
            others = now[there & (np.arange(len(now)) != top)]
            found[step, layer] = (others > now[top]).mean() + (others == now[top]).mean() / 2 - 0.5
    return mean_over(found, 0)


def attended_correlation(a_SLT: Array, change_SLT: Array) -> Array:
    """Rank correlation over positions of attention at the previous step and change, mean over steps (layer)."""
    found = np.full(change_SLT.shape[:2], np.nan)
    for step, layer in np.ndindex(found.shape):
        if step and np.isfinite(change_SLT[step, layer]).any():
            found[step, layer] = spearman(a_SLT[step - 1, layer], change_SLT[step, layer])
    return mean_over(found, 0)


@declare_finding()
def similarity(trace: Trace) -> xr.Dataset:
    """Measure the similarity of each head's attention between steps.

    arXiv 2509.24014 finds that it hardly changes: it computes a sparse pattern per head once, after some steps with full
    attention, and uses it at all later steps. There are two numbers per head: how much of each query's attention stays from
    one step to the next (recorded as `step_similarity`), and how much of the received attention of the first quarter of the
    steps stays in the last quarter. A head may change little at each step and still end elsewhere.
    """
    received = "received_lasting" if trace.is_summary else "received"
    require(trace, received, "step_similarity", finding="similarity")
    overlap_SLH = trace.data["step_similarity"].values.astype(np.float64)
    lasting_LH = trace.data[received].values
    if not trace.is_summary:
        lasting_LH = quarters_overlap(lasting_LH)
    by_step = mean_over(overlap_SLH, (1, 2))
    third = max(1, len(by_step) // 3)
    early, late = mean(by_step[:third]), mean(by_step[-third:])
    first_L, outside_L, inside_L = within_blocks(profile(trace).values, trace.data["step"].values, blocks_of(trace))
    return xr.Dataset(
        {
            "overlap": ("layer", mean_over(overlap_SLH, (0, 2))),
            "overlap_by_head": (("layer", "head"), mean_over(overlap_SLH, 0)),
            "early": early,
            "late": late,
            "settled": late - early,
            "first_keys": ("layer", first_L),
            "outside_change": ("layer", outside_L),
            "inside_change": ("layer", inside_L),
            "inside_beyond": ("layer", inside_L - outside_L),
            "lasting": ("layer", lasting_LH.mean(axis=1)),
            "lasting_by_head": (("layer", "head"), lasting_LH),
        },
        coords={"layer": trace.data["layer"], "head": trace.data["head"]},
    )


def blocks_of(trace: Trace) -> list[tuple[Array, Array]]:
    """The steps and the positions of each block that is written; a sampler without blocks writes one.

    Blocks begin after the prompt, or at multiples of their length if that is what the order of writing shows.
    """
    committed, P = trace.data["committed_at"].values, trace.prompt_length
    size = int(trace.settings.get("block_length") or len(committed))
    for first in (P, 0):
        number_T = np.where(committed >= 0, (np.arange(len(committed)) - first) // size, -1)
        made = [
            (np.unique(committed[number_T == n]), np.flatnonzero(number_T == n)) for n in np.unique(number_T) if n >= 0
        ]
        if all(before[-1] < after[0] for (before, _), (after, _) in pairwise(made)):
            return made
    return [(np.unique(committed[committed >= 0]), np.flatnonzero(committed >= 0))]


def within_blocks(a_SLT: Array, steps: Array, blocks: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """Three numbers per layer, means over the steps of each block after its first, then over blocks.

    The share of the most attended tenth of the positions before the block that are also those of its first step (blocks
    with fewer than ten are left out); and how far the attention of the positions before the block, and of those in it,
    moves from step to step: total variation, each normalised.
    """
    kept: list[Array] = []
    outside: list[Array] = []
    inside: list[Array] = []
    for own_steps, own in blocks:
        rows_SLT = np.nan_to_num(a_SLT[np.isin(steps, own_steps)].astype(np.float64))
        before_SLT, block_SLT = rows_SLT[..., : own[0]], rows_SLT[..., own]
        if len(rows_SLT) < 2 or not own[0]:
            continue
        if (count := own[0] // 10) > 0:
            top_SLK = np.argsort(-before_SLT, axis=-1, kind="stable")[..., :count]
            same = (top_SLK[1:, ..., None] == top_SLK[0][..., None, :]).any(axis=-1)
            kept.append(same.mean(axis=(0, 2)))
        for changes, part_SLT in ((outside, before_SLT), (inside, block_SLT)):
            changes.append(np.abs(np.diff(normalise(part_SLT), axis=0)).sum(axis=-1).mean(axis=0) / 2)
    none = [np.full(a_SLT.shape[1], np.nan)]
    return np.mean(kept or none, axis=0), np.mean(outside or none, axis=0), np.mean(inside or none, axis=0)
