"""Geometry: whether anchors have higher scores because of the length of their keys or because of their direction.

q·k = |q||k| cos θ (QK geometry of arXiv 2601.07894). The anchors' advantage in score over other keys is split exactly
into a norm part and an angle part by Shapley values: for a pair of keys with norm products n and cosines c,

    n₁c₁ − n₂c₂ = (n₁ − n₂)(c₁ + c₂)/2 + (c₁ − c₂)(n₁ + n₂)/2.

It is symmetric in the two factors and holds for scores of any sign, where a split of logarithms does not exist (half
of all cosines are negative). Shares of the advantage may exceed 100 % or be negative, for example when a good direction
makes up for a short key. Averaged over all pairs of an anchor and another key, the split needs only means, and the two
parts still sum to the advantage. The cosine of a key is that of its recorded means, qk /
qk_norm: the mean over queries of cos θ, weighted by the queries' norms, because only this one reproduces the score.
Scores are unscaled q·k.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from floatlens.anchors import parse_rule
from floatlens.errors import FloatLensError
from floatlens.findings import draw, style
from floatlens.findings.finding import declare_finding
from floatlens.findings.positions import Layers, anchors_of, choose_layers, few_layers, index_of
from floatlens.findings.samples import Traces, depths, halves, mean_over, pick, require, sample_name
from floatlens.stats import NAN, Array
from floatlens.trace.summarise import split
from floatlens.trace.trace import Trace

FACTORS = {"qk": "score q·k", "qk_norm": "norm product |q||k|", "qk_cos": "cos θ"}
KEPT = {"advantage": "qk_advantage", "norm_part": "qk_norm_part", "angle_part": "qk_angle_part"}  # in a summary


def draw_heatmap(
    traces: Traces,
    *,
    layer: Layers = None,
    rule: str = "sigma(3)",
    sample: int | str | None = None,
    head: int | None = None,
    step: int | None = None,
    backend: str,
) -> Figure | pd.DataFrame:
    """Draw maps of score, norm product and cosine for one trace, with anchors framed.

    Maps show queries × keys of `step` (the last) for a head whose queries and keys were recorded, otherwise steps ×
    positions of the column means, for one head or the mean over heads.
    """
    trace = pick(traces, sample)[0]
    require(trace, *(FACTORS if head is not None else ()), means=["received", *FACTORS], finding="geometry")
    layers = few_layers(trace)[-1:] if layer is None else choose_layers(trace, layer)
    data = pd.concat([_cells(trace, index, rule, head, step) for index in layers], ignore_index=True)
    return data if backend == "none" else _draw_maps(trace, data, rule, head)


@declare_finding(draw_heatmap=draw_heatmap)
def geometry(trace: Trace, *, layer: Layers = None, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure where the anchors' score advantage comes from, mean over heads and over the steps that have anchors."""
    kept = trace.is_summary and all(name in trace.data for name in KEPT.values())
    require(trace, *(KEPT.values() if kept else ("qk", "qk_norm")), means=["received"], finding="geometry")
    if kept and rule not in trace.data["rule"].values:
        raise FloatLensError(
            f"geometry by {rule} needs qk of single heads, and the trace of {sample_name(trace)!r} is a summary, made "
            f"with the rules {', '.join(trace.data['rule'].values)}; use one of these, or trace again with --detail full"
        )
    layers = choose_layers(trace, layer)
    parts_PL = np.full((len(KEPT), len(layers)), np.nan)
    for position, index in enumerate(layers):  # one layer at a time: no copy of a whole variable
        if kept:
            at = {"layer": index, "rule": rule}
            parts = [trace.data[name].sel(at).transpose("step", "head").values for name in KEPT.values()]
        else:
            a_SLT, anchors_SLT = anchors_of(trace, rule, index)  # of one layer
            others_SLT = np.isfinite(a_SLT.values) & ~anchors_SLT
            score_SHT, norm_SHT = (_layer(trace, name, index) for name in ("qk", "qk_norm"))
            parts = list(split(score_SHT, norm_SHT, anchors_SLT, others_SLT))
        parts_PL[:, position] = [mean_over(part_SH, (0, 1)) for part_SH in parts]
    numbers = dict(zip(KEPT, parts_PL, strict=True))
    shares = shares_by_half(numbers, depths(trace, np.array(layers)))
    by_layer = {name: ("layer", values) for name, values in numbers.items()}
    return xr.Dataset({**by_layer, **shares}, coords={"layer": layers})


def _layer(trace: Trace, name: str, layer: int) -> Array:
    found = trace.data[name].sel(layer=layer).transpose("step", "head", "position").values
    return np.asarray(found, dtype=np.float32)


def shares_by_half(parts_L: Mapping[str, Array], depth_L: Array) -> dict[str, float]:
    """Shares of the norm and of the angle in the shallow and in the deep half of the layers.

    Of the whole advantage (NaN if the anchors have none), and of the angle in the absolute values of both parts, which lies
    between 0 and 1 also where the parts cancel. Ratios of means over layers, so that a layer with almost no advantage does
    not count like one with a large one.
    """
    norm, angle, whole = (halves(parts_L[name], depth_L) for name in ("norm_part", "angle_part", "advantage"))
    size = [halves(np.abs(parts_L[name]), depth_L) for name in ("angle_part", "norm_part")]
    shares: dict[str, float] = {}
    with np.errstate(divide="ignore", invalid="ignore"):  # no anchors
        for n, half in enumerate(("shallow", "deep")):
            shares[f"norm_{half}"] = float(norm[n] / whole[n]) if whole[n] > 0 else NAN
            shares[f"angle_{half}"] = float(angle[n] / whole[n]) if whole[n] > 0 else NAN
            shares[f"bounded_{half}"] = float(size[0][n] / (size[0][n] + size[1][n]))
    beyond = {"angle_beyond_half": shares["angle_deep"] - 0.5}
    return {**shares, **beyond, "turn": shares["bounded_deep"] - shares["bounded_shallow"]}


# Maps


def _cells(trace: Trace, layer: int, rule: str, head: int | None, step: int | None) -> pd.DataFrame:
    """One row per factor and cell of its map, with the anchors of its step or of the one step drawn."""
    anchors_ST = anchors_of(trace, rule, layer)[1][:, 0]
    row = index_of(trace, "step", int(trace.data["step"].values[-1]) if step is None else step)
    rows = "step"
    if head is None:
        factor = {name: trace.head_mean(name).sel(layer=layer).transpose("step", "position").values for name in FACTORS}
    elif "queries" in trace.data and "keys" in trace.data:
        rows, anchors_ST = "query", anchors_ST[[row]]
        factor = _queries_and_keys(trace, layer, head, row)
    else:
        position = index_of(trace, "head", head)
        factor = {name: _layer(trace, name, layer)[:, position] for name in FACTORS}
    dims, shape = ("row", "position"), factor["qk"].shape
    cells = xr.Dataset(
        {
            "token": ("position", np.array(trace.texts(), dtype=object)),
            "value": (("factor", *dims), np.array(list(factor.values()))),
            "anchor": (dims, np.broadcast_to(anchors_ST, shape)),
        },
        coords={"factor": list(factor), "row": np.arange(shape[0]), "position": np.arange(shape[1])},
    )
    frame = cells.to_dataframe(["factor", *dims]).reset_index()
    frame = frame.assign(model=trace.model, sample=sample_name(trace), layer=layer, row_is=rows)
    return frame[["model", "sample", "factor", "layer", "row", "row_is", "position", "token", "value", "anchor"]]


def _queries_and_keys(trace: Trace, layer: int, head: int, row: int) -> dict[str, Array]:
    """The factors of every query and key of one head as of a step."""
    q_HTD, k_KTD = (_until(trace, name, layer, row) for name in ("queries", "keys"))
    count = int(trace.data.attrs.get("n_heads", len(q_HTD)))  # only some heads may be recorded
    own = index_of(trace, "head", head), head // (count // len(k_KTD))
    maps = [values_HQT[0] for values_HQT in factors(q_HTD[[own[0]]], k_KTD[[own[1]]])]
    hidden = np.triu(np.ones(maps[0].shape, bool), 1) & (trace.attention_kind == "causal")
    return {name: np.where(hidden, np.nan, values) for name, values in zip(FACTORS, maps, strict=True)}


def _until(trace: Trace, name: str, layer: int, row: int) -> Array:
    """Queries or keys as of a step; with a cache each position is recorded at the step that computed it."""
    own = "layer" if "layer" in trace.data[name].dims else f"{name}_layer"
    found_SHTD = trace.data[name].isel({own: index_of(trace, own, layer, f"matrix {name} of layer")}).values[: row + 1]
    latest = found_SHTD[0]
    for one in found_SHTD[1:]:
        latest = np.where(np.isfinite(one), one, latest)
    return np.asarray(latest)


def _draw_maps(trace: Trace, data: pd.DataFrame, rule: str, head: int | None) -> Figure:
    layers, rows = list(dict.fromkeys(data["layer"])), data["row_is"].iloc[0]
    with style.sheet():
        figure = style.new_figure(0.6 + (2.1 if rows == "query" else 1.35) * len(layers))
        grid = figure.subplots(len(layers), 3, squeeze=False, sharex=True, sharey=True)
        for (layer, name), part in data.groupby(["layer", "factor"]):
            axes = grid[layers.index(layer), list(FACTORS).index(str(name))]
            values, anchors = (part.pivot(index="row", columns="position", values=v) for v in ("value", "anchor"))
            reach = max(float(np.nanmax(np.abs(values))), 1e-9)
            norm, cmap = Normalize(-reach, reach), style.DIVERGING
            if name == "qk_norm":
                middle = float(np.nanmedian(values))  # keep noise from filling the colour scale
                lowest, highest = min(float(np.nanmin(values)), 0.8 * middle), max(reach, 1.2 * middle)
                norm, cmap = Normalize(lowest, highest), style.SEQUENTIAL
            mesh = draw.attention_map(axes, values.to_numpy(), cmap=cmap, norm=norm)
            draw.hatch_anchors(axes, anchors.to_numpy())
            figure.colorbar(mesh, ax=axes, pad=0.01, aspect=14).ax.tick_params(labelsize=6)
        for axes, text in zip(grid[0], FACTORS.values(), strict=True):
            axes.set_title(text, pad=10)
        for axes, layer in zip(grid[:, 0], layers, strict=True):
            axes.set_ylabel(f"layer {layer}\n{rows}")
        for axes in grid[-1]:
            axes.set_xlabel("key position" if rows == "query" else "position")
        which = "mean over heads" if head is None else f"head {head}"
        anchors_by = f"anchors by {parse_rule(rule).id} framed"
        style.caption(figure, f"{style.short(trace.model)}, {which}; {anchors_by}; scores unscaled.")
    return figure


def factors(queries_HTD: Array, keys_KTD: Array) -> tuple[Array, Array, Array]:
    """Score, norm product and cosine of every query and key (H, Q, T); query head h uses key head h // (H / K).

    A query or key of norm zero has cosine 0.
    """
    keys_HTD = np.repeat(keys_KTD, len(queries_HTD) // len(keys_KTD), axis=0).astype(np.float64)
    queries = queries_HTD.astype(np.float64)
    score = queries @ keys_HTD.transpose(0, 2, 1)
    norm = np.linalg.norm(queries, axis=-1)[:, :, None] * np.linalg.norm(keys_HTD, axis=-1)[:, None, :]
    return score, norm, np.divide(score, norm, out=np.zeros_like(score), where=norm != 0)


measure, figure, claims = geometry.measure, geometry.figure, geometry.claims
