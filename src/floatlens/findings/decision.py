"""Decision depth: the layer and the step at which a token is decided.

Measured by the logit lens, which gives the token that each layer predicts. A token is decided at the first layer from which
it is the most likely token up to the last layer. arXiv 2508.19982 finds that diffusion models know their answer long before
they write it. If retrieval heads fetch the answer, they should be just below the layer of decision.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from floatlens.findings.definitions import retrieval_depth
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, answer_positions, depths, mean_over
from floatlens.stats import spearman
from floatlens.trace.trace import Trace

BINS = 8  # bins of the time until a token is written


class Decision(Finding):
    name = "decision"
    views = ("layers", "steps")
    needs = ("lens_token",)
    records = ("lens_token",)
    setting = "passages"

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure where and when the tokens of the answer are decided."""
        layers = trace.data["layer"].values
        depth_L, leads = depths(trace, layers), leading(trace)
        decided_at = [layer for lead_SL in leads.values() if (layer := decision_layer(lead_SL[-1])) is not None]
        decided_L = [sum(layer <= n for layer in decided_at) / len(leads) for n in range(len(layers)) if decided_at]
        open_for_three = {position: lead_SL[:, -1] for position, lead_SL in leads.items() if len(lead_SL) > 2}
        before = list(open_for_three.values())
        hit_L, heads_depth = np.full(len(layers), np.nan), np.nan
        if "evidence_hit" in trace.data and np.isfinite(trace.data["evidence_hit"].values).any():
            hit_LH = mean_over(trace.data["evidence_hit"].values.astype(float), 0)
            heads_depth = retrieval_depth(hit_LH, depth_L)
            total = np.nansum(hit_LH)
            hit_L = np.nansum(hit_LH, axis=1) / total if total > 0 else hit_L
        decision_depth = float(depth_L[decided_at].mean()) if decided_at else np.nan
        return xr.Dataset(
            {
                "decision_depth": decision_depth,
                "below_decision": decision_depth - heads_depth,
                "decided": ("layer", np.array(decided_L) if decided_at else np.full(len(layers), np.nan)),
                "hits": ("layer", hit_L),
                "heads_depth": heads_depth,
                "early": float(np.mean([leads_from_half(lead) for lead in before])) if before else np.nan,
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
        return float("nan")
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


decision = register_finding(Decision())
measure, figure, claims = decision.measure, decision.figure, decision.claims
