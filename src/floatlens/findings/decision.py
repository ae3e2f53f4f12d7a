"""Decision depth: the layer and the step at which a token is decided.

Measured by the logit lens, which gives the token that each layer predicts. A token is decided at the first layer from which
it is the most likely token up to the last layer. arXiv 2508.19982 finds that diffusion models know their answer long before
they write it. If retrieval heads fetch the answer, they should be just below the layer of decision.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.findings import style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.heads import depth_of_scores
from floatlens.findings.numbers import layer_lines, lines
from floatlens.findings.outcome import Outcome, between, mean_of
from floatlens.findings.samples import Array, Traces, depths, is_measured, mean_over, per_sample, require
from floatlens.findings.spelling import number, percent
from floatlens.findings.writing import answer_positions
from floatlens.trace.trace import Trace

VIEWS = ("layers", "steps")
BINS = 8  # bins of the time until a token is written
LABELS = {
    "decided": "tokens decided\nat this layer or before",
    "hits": "copy score of the heads\n(share of the model's)",
}


def measure(traces: Traces) -> xr.Dataset:
    """Measure where and when the tokens of the answer are decided.

    | variable | dims | description |
    |---|---|---|
    | decision_depth | sample | depth of the layer of decision at the commit, mean over the answer's tokens |
    | decided | sample, layer | share of tokens that lead from this layer to the last, at their commit |
    | hits | sample, layer | share of all heads' copy score at this layer |
    | heads_depth | sample | score-weighted depth of the retrieval heads |
    | early | sample | share of tokens that lead at the last layer during the second half of the steps before commit |
    | leads | sample, elapsed | share of tokens that lead at the last layer, by the share of steps elapsed until the commit |
    """
    return per_sample(traces, _measure_one, "decision")


def _measure_one(trace: Trace) -> xr.Dataset:
    require(trace, "lens_token", finding="decision")
    data = trace.data
    layers = data["layer"].values
    depth_L = depths(trace, layers)
    leads = leading(trace)
    at = [layer for lead_SL in leads if (layer := decision_layer(lead_SL[-1])) is not None]
    before = [lead_SL[:, -1] for lead_SL in leads if len(lead_SL) > 2]
    hit_L = np.full(len(layers), np.nan)
    heads_depth = np.nan
    if "evidence_hit" in data and np.isfinite(data["evidence_hit"].values).any():
        hit_LH = mean_over(data["evidence_hit"].values.astype(float), 0)
        heads_depth = depth_of_scores(hit_LH, depth_L)
        total = np.nansum(hit_LH)
        hit_L = np.nansum(hit_LH, axis=1) / total if total > 0 else hit_L
    decided = (
        [np.mean([layer <= n for layer in at]) * len(at) / len(leads) for n in range(len(layers))] if at else np.nan
    )
    return xr.Dataset(
        {
            "decision_depth": float(depth_L[at].mean()) if at else np.nan,
            "decided": ("layer", np.broadcast_to(decided, len(layers)).astype(float)),
            "hits": ("layer", hit_L),
            "heads_depth": heads_depth,
            "early": float(np.mean([leads_from_half(lead) for lead in before])) if before else np.nan,
            "leads": ("elapsed", by_elapsed(before)),
        },
        coords={"layer": layers, "elapsed": (np.arange(BINS) + 0.5) / BINS},
    )


def leading(trace: Trace) -> list[Array]:
    """For each token of the answer, whether it leads (step, layer) at the steps up to its commit that computed its row."""
    lens_SLT, final = trace.data["lens_token"].values, trace.final_tokens
    rows = np.flatnonzero(np.isfinite(lens_SLT).any(axis=(0, 1)))
    shift = 1 if len(rows) and rows[0] < trace.prompt_length else 0  # row j − 1 writes j, or row j does
    steps, committed = trace.data["step"].values, trace.data["committed_at"].values
    found = []
    for position in answer_positions(trace):
        lens_SL = lens_SLT[steps <= committed[position], :, position - shift]
        lens_SL = lens_SL[np.isfinite(lens_SL).all(axis=1)]
        if len(lens_SL) and committed[position] in steps:
            found.append(lens_SL == final[position])
    return found


def decision_layer(lead_L: Array) -> int | None:
    """The first layer from which the token leads up to the last layer; None if it does not lead at the last layer.

    >>> decision_layer(np.array([True, False, True, True])), decision_layer(np.array([True, False]))
    (2, None)
    """
    if not lead_L[-1]:
        return None
    behind = np.flatnonzero(~lead_L)
    return int(behind[-1]) + 1 if len(behind) else 0


def leads_from_half(lead_S: Array) -> bool:
    """Whether a token leads at all steps of the second half before its commit; the last step is the commit.

    >>> leads_from_half(np.array([False, False, True, True, True])), leads_from_half(np.array([True, True, False]))
    (True, False)
    """
    return bool(lead_S[-(-(len(lead_S) - 1) // 2) :].all())


def by_elapsed(leads: list[Array]) -> Array:
    """Share of tokens that lead, by the share of the steps elapsed until their commit, in equal bins."""
    sums, counts = np.zeros(BINS), np.zeros(BINS)
    for lead_S in leads:
        bins = np.minimum((np.arange(len(lead_S)) / (len(lead_S) - 1) * BINS).astype(int), BINS - 1)
        np.add.at(sums, bins, lead_S)
        np.add.at(counts, bins, 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def figure(traces: Traces, *, view: str = "layers", backend: str = "matplotlib") -> Figure | pd.DataFrame:
    """Draw the layers where tokens are decided next to those where heads retrieve (`layers`), or the steps (`steps`)."""
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "decision") else measure(traces)
    if view == "layers":
        return layer_lines(measured, LABELS, backend=backend, note="By the logit lens at the commit")
    names = {"leads": "tokens that lead\nthe model's prediction"}
    label = "time until the commit (0 to 1)"
    return lines(measured, names, "elapsed", label, backend=backend, note="By the last layer", shares=True)


@register_claim("decision.early")
def knows_early(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return mean_of(measured, measured["early"].values, kind="mdm", model=mdm)


@register_claim("decision.heads")
def heads_below(measured: xr.Dataset, *, model: str | None = None) -> Outcome:
    apart = measured["decision_depth"].values - measured["heads_depth"].values
    beside = {name: measured[name].values for name in ("decision_depth", "heads_depth")}
    return between(measured, apart, 0.0, 0.25, model=model, beside=beside, what="samples whose answer was copied")


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "depth of decision": mean(part["decision_depth"].values),
            "depth of retrieval heads": mean(part["heads_depth"].values),
            "lead from half of the steps on": mean(part["early"].values),
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Depth: 0 is the first layer, 1 the last", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        depth, heads, early = (mean(part[name].values) for name in ("decision_depth", "heads_depth", "early"))
        text = f"{model} ({kind}) decides its tokens at {percent(depth)} of its depth"
        text += f"; its retrieval heads sit at {percent(heads)}." if np.isfinite(heads) else "."
        if np.isfinite(early):
            text += f" {percent(early)} of the tokens lead from half of the steps before their commit on."
        found.append(text)
    return found


REPORT = ReportText(
    title="Decision depth",
    question="In which layer, and at which step, is a token decided?",
    views={
        "layers": (
            "Tokens that are decided, beside the heads that retrieve, by layer",
            "Left: share of the answer's tokens that lead from this layer on when they are written. Right: where the copy "
            "score of the retrieval heads lies.",
        ),
        "steps": (
            "Tokens that lead the prediction before they are written",
            "From the first step (0) to the commit (1). High on the left: the token was known long before.",
        ),
    },
    tables=tables,
    sentences=sentences,
)
decision = register_finding(
    Finding(
        "decision",
        paper="other papers: arXiv 2508.19982",
        measure=measure,
        figure=figure,
        views=VIEWS,
        report=REPORT,
        setting="passages",
        records=("lens_token",),
    )
)
claims = decision.claims
