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
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.data.token_kinds import text_of
from floatlens.errors import FloatLensError
from floatlens.findings import definitions, draw, published, style
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.samples import Array, depths, mean_over, models_of, parts_of
from floatlens.findings.spelling import count, number
from floatlens.stats import NAN
from floatlens.trace.summarise import prompt_share
from floatlens.trace.trace import Trace

RETRIEVES, STRONG = 0.1, 0.5  # Wu et al. call a head a retrieval head from 0.1 on, and strong from 0.5
SCORES = {"hit": "copy score", "mass": "mass on gold evidence", "query": "query-only score"}


class Heads(Finding):
    name = "heads"
    views = ("map", "depth")
    setting = "passages"

    def measure_one(self, trace: Trace) -> xr.Dataset:
        """Measure which heads copy from the gold document: scores in [0, 1] per sample, weighted by committed tokens.

        The attributes `used` and `left_out` hold the number of used samples, and why the others were left out.
        """
        if not {"layer", "head"} <= set(trace.data.sizes):
            raise FloatLensError(
                f"the trace of {trace.model!r} holds no data per head; trace again with record including evidence"
            )
        reason = why_not(trace)
        found = {name: np.full([trace.data.sizes[d] for d in ("layer", "head")], np.nan) for name in SCORES}
        n_tokens = 0
        if not reason:
            count_S = trace.data["evidence_count"].values
            n_tokens = int(count_S.sum())
            hit_SLH, mass_SLH = (
                trace.data[name].transpose("step", "layer", "head").values for name in ("evidence_hit", "evidence_mass")
            )
            found["hit"], found["mass"] = step_mean(hit_SLH, count_S), step_mean(mass_SLH, count_S)
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
                "depth_beyond_half": depth["hit"] if not reason else NAN,
                "depth_by_mass": depth["mass"],
                "prompt_spread": ("layer", prompt_LH.std(axis=1)),
                "n_tokens": n_tokens,
                "reason": np.array(reason, dtype=object),
            },
            coords={"layer": trace.data["layer"].values, "head": trace.data["head"].values},
        )

    def measure_all(self, traces: Any, **options: Any) -> xr.Dataset:
        measured = super().measure_all(traces, **options)
        reasons = Counter(str(r) for r in measured["reason"].values)
        used = reasons.pop("", 0)
        return measured.assign_attrs(used=f"{used} of {measured.sizes['sample']}", left_out=json.dumps(dict(reasons)))

    def draw_map(self, measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
        """Draw scores, layer × head, one column per model; `paper` adds the published maps of LLaDA and Dream."""
        data = _cells(measured)
        if paper:
            data = pd.concat([data, published.head_rows()], ignore_index=True)
        return data if backend == "none" else _draw_map(measured, data)

    def draw_depth(self, measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
        """Draw the number of retrieval heads by layer."""
        data = table(measured)
        return data if backend == "none" else _draw_depth(measured, data)

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        hit_LH = mean_over(part["hit"].values, 0)
        return {
            "heads above 0.1": int((hit_LH > RETRIEVES).sum()),
            "heads above 0.5": int((hit_LH > STRONG).sum()),
            "heads": int(np.isfinite(hit_LH).sum()),
            "score-weighted depth": definitions.retrieval_depth(hit_LH, mean_over(part["depth"].values, 0)),
            "samples used": int((part["reason"].values == "").sum()),
        }

    def sentence(self, model: str, part: xr.Dataset) -> str:
        hit_LH = mean_over(part["hit"].values, 0)
        if not np.isfinite(hit_LH).any():
            return f"No sample of {model} can be used: no committed token is in its gold document."
        layer, head = np.unravel_index(np.nanargmax(hit_LH), hit_LH.shape)
        strong = int((hit_LH > RETRIEVES).sum())
        return (
            f"{model} has {count(strong, 'head')} of {int(np.isfinite(hit_LH).sum())} that attend most to the token being "
            f"copied in more than one of ten commits; the best is head {head} of layer {part['layer'].values[layer]} with a "
            f"score of {number(float(hit_LH[layer, head]), 2)}."
        )

    def notes(self, measured: xr.Dataset) -> list[str]:
        left = json.loads(str(measured.attrs.get("left_out", "{}")))
        return [f"{count(n, 'sample')} left out: {reason}." for reason, n in left.items()]


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
            "above_0.1": (scores["hit"] > RETRIEVES).sum(axis=1),
            "above_0.5": (scores["hit"] > STRONG).sum(axis=1),
            "heads": np.isfinite(scores["hit"]).sum(axis=1),
        }
        parts.append(pd.DataFrame(columns).loc[np.isfinite(part["depth"].values).any(axis=0)])
    return pd.concat(parts, ignore_index=True)


def step_mean(values_SLH: Array, count_S: Array) -> Array:
    """Mean over steps, each weighted by the number of tokens it committed."""
    weight = count_S.astype(float)[:, None, None]
    return np.where(weight > 0, values_SLH * weight, 0.0).sum(axis=0) / max(float(count_S.sum()), 1.0)


# Figures


def _cells(measured: xr.Dataset) -> pd.DataFrame:
    layers, heads = measured["layer"].values, measured["head"].values
    parts = []
    for model in models_of(measured):
        rows = measured["model"].values == model
        for name in SCORES:
            mean_LH = mean_over(measured[name].values[rows], 0)
            columns = {
                "model": model,
                "score": name,
                "layer": np.repeat(layers, len(heads)),
                "head": np.tile(heads, len(layers)),
                "value": mean_LH.ravel(),
                "n": np.isfinite(measured[name].values[rows]).sum(axis=0).ravel(),
            }
            parts.append(pd.DataFrame(columns).dropna(subset="value"))
    return pd.concat(parts, ignore_index=True)


def _note(measured: xr.Dataset) -> str:
    left_out = json.loads(measured.attrs["left_out"])
    why = "; ".join(f"{n} left out: {reason}" for reason, n in left_out.items())
    return f"{measured.attrs['used']} samples used{'; ' + why if why else ''}."


def _draw_map(measured: xr.Dataset, data: pd.DataFrame) -> Figure:
    models, left_out = style.shown(list(dict.fromkeys([*models_of(measured), *data["model"]])))
    rows = [s for s in SCORES if (data["score"] == s).any()] or ["hit"]
    rows = rows[: max(1, style.PANELS // len(models))]
    with style.sheet():
        figure = style.new_figure(0.7 + 2.2 * len(rows), width=max(3.4, min(style.WIDTH, 2.5 * len(models))))
        grid = figure.subplots(len(rows), len(models), squeeze=False)
        for row, name in enumerate(rows):
            for column, model in enumerate(models):
                axes = grid[row, column]
                part = data[(data["model"] == model) & (data["score"] == name)]
                if part.empty:
                    if model not in models_of(measured):  # the paper has only the copy score
                        axes.set_axis_off()
                        continue
                    axes.text(0.5, 0.5, "nothing recorded", ha="center", transform=axes.transAxes)
                    axes.set_axis_off()
                else:
                    values = part.pivot(index="layer", columns="head", values="value")
                    mesh = draw.attention_map(
                        axes, values.to_numpy(), norm=Normalize(0, 1) if name == "hit" else PowerNorm(0.5, 0, 1)
                    )
                    axes.set_xlabel("head")
                    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8 if len(models) < 4 else 4))
                    draw.name_rows(axes, values.index.tolist())
                    figure.colorbar(mesh, ax=axes, pad=0.02, aspect=18)
                if row == 0:
                    axes.set_title(style.short(model))
            next((axes for axes in grid[row] if axes.axison), grid[row, 0]).set_ylabel(f"{SCORES[name]}\nlayer")
        style.caption(figure, f"Mean over samples. {_note(measured)}{left_out}")
    return figure


def _draw_depth(measured: xr.Dataset, data: pd.DataFrame) -> Figure:
    models, left_out = style.shown(models_of(measured))
    with style.sheet():
        figure = style.new_figure(2.5, width=max(3.4, min(style.WIDTH, 2.4 * len(models))))
        grid = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axes, model in zip(grid, models, strict=True):
            part = data[data["model"] == model]
            axes.bar(part["layer"], part["above_0.1"], color=style.COLOURS[5], label="score above 0.1")
            axes.bar(part["layer"], part["above_0.5"], color=style.COLOURS[0], label="above 0.5")
            axes.set(title=style.short(model), xlabel="layer")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        most = int(data["heads"].max())
        grid[0].set_ylabel(f"retrieval heads (of {most} per layer)")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        style.caption(figure, f"Copy score at the commit step, mean over samples. {_note(measured)}{left_out}")
    return figure


heads = register_finding(Heads())
measure, figure, claims = heads.measure, heads.figure, heads.claims
