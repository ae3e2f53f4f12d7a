"""Retrieval heads: which heads copy the answer from the gold document, and in which layers they are.

The score of Wu et al. 2024 (arXiv 2404.15574), per step: a head scores when, at the step that commits an answer token,
its most attended key is the same token inside the gold evidence. For an autoregressive model (ARM) that step is the one
that generates the token. There are two more scores: the mass score (attention on the gold evidence at that step), and a
query-only score that needs no generation (arXiv 2506.09944): attention from the question to the gold documents at the
first step, if `query_mass` was recorded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.data.token_kinds import text_of
from floatlens.errors import FloatLensError
from floatlens.findings import definitions, draw, published
from floatlens.findings.finding import Finding, declare_finding
from floatlens.findings.samples import depths, mean_over, parts_of
from floatlens.findings.spelling import count
from floatlens.stats import Array
from floatlens.trace.summarise import prompt_share
from floatlens.trace.trace import Trace

RETRIEVES, STRONG = 0.1, 0.5  # Wu et al. call a head a retrieval head from 0.1 on, and strong from 0.5
SCORES = {"hit": "copy score", "mass": "mass on gold evidence", "query": "query-only score"}


def measure_all(traces: Any, **options: Any) -> xr.Dataset:
    measured = Finding.measure_all(heads, traces, **options)
    reasons = Counter(str(r) for r in measured["reason"].values)
    used = reasons.pop("", 0)
    return measured.assign_attrs(used=f"{used} of {measured.sizes['sample']}", left_out=json.dumps(dict(reasons)))


def draw_map(measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
    """Draw scores, layer × head, one map per score and model; `paper` adds the published maps of LLaDA and Dream."""
    note, beside = f"Mean over samples. {_note(measured)}", published.head_rows() if paper else None
    return draw.layer_maps(measured, SCORES, "head", "score", backend=backend, note=note, beside=beside)


def draw_depth(measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
    """Draw the number of retrieval heads by layer."""
    data = table(measured)
    if backend == "none":
        return data
    names = {f"above_{level}": f"heads with a score above {level}" for level in (RETRIEVES, STRONG)}
    counts = data.round({"depth": 6}).melt(["model", "layer", "depth"], list(names), "number", "mean")
    counts = counts.assign(low=counts["mean"], high=counts["mean"])
    note = f"Copy score at the commit step, mean over samples. {_note(measured)}"
    return draw.curves(counts, "layer", "number", names, xlabel="layer", note=note)


def row(part: xr.Dataset) -> dict[str, Any]:
    hit_LH = mean_over(part["hit"].values, 0)
    return {
        **{f"heads above {level}": int((hit_LH > level).sum()) for level in (RETRIEVES, STRONG)},
        "heads": int(np.isfinite(hit_LH).sum()),
        "score-weighted depth": definitions.retrieval_depth(hit_LH, mean_over(part["depth"].values, 0)),
        "samples used": int((part["reason"].values == "").sum()),
    }


def notes(measured: xr.Dataset) -> list[str]:
    return [f"{count(n, 'sample')} left out: {reason}." for reason, n in json.loads(measured.attrs["left_out"]).items()]


@declare_finding(measure_all=measure_all, draw_map=draw_map, draw_depth=draw_depth, row=row, notes=notes)
def heads(trace: Trace) -> xr.Dataset:
    """Measure which heads copy from the gold document: scores in [0, 1] per sample, weighted by committed tokens.

    The attributes `used` and `left_out` hold the number of used samples, and why the others were left out.
    """
    if not {"layer", "head"} <= set(trace.data.sizes):
        raise FloatLensError(
            f"the trace of {trace.model!r} holds no data per head; trace again with --record default,evidence"
        )
    reason = why_not(trace)
    found = {name: np.full([trace.data.sizes[d] for d in ("layer", "head")], np.nan) for name in SCORES}
    for name in ("hit", "mass") if not reason else ():
        score_SLH = trace.data[f"evidence_{name}"].transpose("step", "layer", "head").values
        found[name] = step_mean(score_SLH, trace.data["evidence_count"].values)
    if "query_mass" in trace.data:
        found["query"] = trace.data["query_mass"].isel(step=0).transpose("layer", "head").values.astype(float)
    prompt_LH = np.full((trace.data.sizes["layer"], 1), np.nan)
    if "received_prompt" in trace.data:  # of a summary
        prompt_LH = trace.data["received_prompt"].values
    elif "received" in trace.data:
        received = trace.data["received"].transpose("step", "layer", "head", "position")
        prompt_LH = prompt_share(received.values, trace.prompt_length)
    depth_L = depths(trace, trace.data["layer"].values)
    depth = {name: definitions.retrieval_depth(found[name], depth_L) - 0.5 for name in ("hit", "mass")}
    return xr.Dataset(
        {
            **{name: (("layer", "head"), values) for name, values in found.items()},
            "depth_beyond_half": depth["hit"],
            "depth_by_mass": depth["mass"],
            "prompt_spread": ("layer", prompt_LH.std(axis=1)),
            "reason": np.array(reason, dtype=object),
        },
        coords={"layer": trace.data["layer"].values, "head": trace.data["head"].values},
    )


def why_not(trace: Trace) -> str:
    """The reason why a sample cannot be used for retrieval heads; empty if it can."""
    if not trace.gold:
        return "no gold document is named"
    if any(name not in trace.data for name in ("evidence_hit", "evidence_mass", "evidence_count")):
        return "evidence was not recorded"
    if trace.answers:
        spans = {r.name: r for r in trace.regions}
        strings = trace.strings()
        text = " ".join(text_of(strings[spans[g].start : spans[g].end]) for g in trace.gold if g in spans)
        if not any(_folded(answer) in _folded(text) for answer in trace.answers):
            return "the answer is not in the gold document"
    if not trace.data["evidence_count"].values.sum():
        return "no committed token is in the gold document"
    return ""


def _folded(text: str) -> str:
    """The words of a text between single spaces, so that 42 is not found in 1842."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return f" {' '.join(words)} "


def table(traces: Any, **options: Any) -> pd.DataFrame:
    """Return one row per model and layer: mean scores over usable samples, heads above 0.1 and 0.5."""
    parts = []
    for model, part in parts_of(heads.measure(traces, **options)):
        scores = {name: mean_over(part[name].values, 0) for name in SCORES}
        columns = {
            "model": model,
            "layer": part["layer"].values,
            "depth": mean_over(part["depth"].values, 0),
            **{name: mean_over(values, 1) for name, values in scores.items()},
            **{f"above_{level}": (scores["hit"] > level).sum(axis=1) for level in (RETRIEVES, STRONG)},
            "heads": np.isfinite(scores["hit"]).sum(axis=1),
        }
        parts.append(pd.DataFrame(columns).dropna(subset="depth"))
    return pd.concat(parts, ignore_index=True)


def step_mean(values_SLH: Array, count_S: Array) -> Array:
    """Mean over steps, each weighted by the number of tokens it committed."""
    weight = count_S.astype(float)[:, None, None]
    return np.where(weight > 0, values_SLH * weight, 0.0).sum(axis=0) / max(float(count_S.sum()), 1.0)


def _note(measured: xr.Dataset) -> str:
    why = [f"; {n} left out: {reason}" for reason, n in json.loads(measured.attrs["left_out"]).items()]
    return f"{measured.attrs['used']} samples used{''.join(why)}."


measure, figure, claims = heads.measure, heads.figure, heads.claims
