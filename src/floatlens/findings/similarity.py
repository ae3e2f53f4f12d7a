"""Step similarity: how similar a head's attention is from one step to the next.

arXiv 2509.24014 finds that it hardly changes: it computes a sparse pattern per head once, after some steps with full
attention, and uses it at all later steps. There are two numbers per head: how much of each query's attention stays from one
step to the next (recorded as `step_similarity`), and how much of the received attention of the first quarter of the steps
stays in the last quarter. A head may change little at each step and still end elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import xarray as xr

from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, mean, mean_over, profile, require
from floatlens.trace.summarise import quarters_overlap
from floatlens.trace.trace import Trace


class Similarity(Finding):
    name = "similarity"
    views = ("heads", "layers")
    records = ("step_similarity",)

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure the similarity of each head's attention between steps."""
        received = "received_lasting" if trace.is_summary else "received"
        require(trace, received, "step_similarity", finding=self.name)
        overlap_SLH = trace.data["step_similarity"].values.astype(np.float64)
        lasting_LH = trace.data[received].values
        if not trace.is_summary:
            lasting_LH = quarters_overlap(lasting_LH)
        by_step = mean_over(overlap_SLH, (1, 2))
        third = max(1, len(by_step) // 3)
        blocks = blocks_of(trace)
        first_L, outside_L, inside_L = within_blocks(profile(trace).values, trace.data["step"].values, blocks)
        return xr.Dataset(
            {
                "overlap": ("layer", mean_over(overlap_SLH, (0, 2))),
                "overlap_by_head": (("layer", "head"), mean_over(overlap_SLH, 0)),
                "early": mean(by_step[:third]),
                "late": mean(by_step[-third:]),
                "settled": mean(by_step[-third:]) - mean(by_step[:third]),
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
            total = part_SLT.sum(axis=-1, keepdims=True)
            shares = np.divide(part_SLT, total, out=np.zeros_like(part_SLT), where=total > 0)
            changes.append(np.abs(np.diff(shares, axis=0)).sum(axis=-1).mean(axis=0) / 2)
    none = np.full(a_SLT.shape[1], np.nan)
    first, out, within = (np.mean(each, axis=0) if each else none for each in (kept, outside, inside))
    return first, out, within


similarity = register_finding(Similarity())
measure, figure, claims = similarity.measure, similarity.figure, similarity.claims
