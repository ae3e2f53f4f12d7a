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
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from floatlens.anchors import find_anchors, parse_rule
from floatlens.errors import FloatLensError
from floatlens.findings import draw, style
from floatlens.findings.finding import Finding, register_finding
from floatlens.findings.received import Layers, choose_layers, few_layers, profile, spell
from floatlens.findings.samples import Array, Traces, depths, halves, mean, mean_over, pick, require
from floatlens.stats import NAN
from floatlens.trace.summarise import HEADS, group_mean, mean_over_heads, split
from floatlens.trace.trace import Trace

FACTORS = {"qk": "score q·k", "qk_norm": "norm product |q||k|", "qk_cos": "cos θ"}
KEPT = {"advantage": "qk_advantage", "norm_part": "qk_norm_part", "angle_part": "qk_angle_part"}  # in a summary
PARTS = ("advantage", "norm_part", "angle_part")


class Geometry(Finding):
    name = "geometry"
    views = ("split", "heatmap")
    maps = ("heatmap",)

    def measure_one(self, trace: Trace, *, layer: Layers = None, rule: str = "sigma(3)") -> xr.Dataset:
        """Measure where the anchors' score advantage comes from, mean over heads and over the steps that have anchors."""
        kept = trace.is_summary and all(name in trace.data for name in KEPT.values())
        has_values = trace.has_head_mean("value_norm")
        means = ["received", "value_norm"] if has_values else ["received"]
        require(trace, *(KEPT.values() if kept else ("qk", "qk_norm")), means=means, finding=self.name)
        if kept:
            _check_rule(trace, rule)
        layers = choose_layers(trace, layer)
        numbers = {name: np.full(len(layers), np.nan) for name in (*PARTS, "value_ratio")}
        for position, index in enumerate(layers):  # one layer at a time: no copy of a whole variable
            a_ST = profile(trace, index).values[:, 0]
            anchors_ST = find_anchors(a_ST, rule, trace.attention_kind)
            others_ST = np.isfinite(a_ST) & ~anchors_ST
            if kept:
                at = {"layer": index, "rule": rule}
                parts = tuple(trace.data[name].sel(at).transpose("step", "head").values for name in KEPT.values())
            else:
                score_SHT, norm_SHT = (_layer(trace, name, index) for name in ("qk", "qk_norm"))
                parts = split(score_SHT, norm_SHT, anchors_ST[:, None], others_ST[:, None])
            for name, part_SH in zip(PARTS, parts, strict=True):
                numbers[name][position] = mean_over(part_SH, (0, 1))
            steps = anchors_ST.any(axis=-1)
            if has_values and steps.any():
                value_ST = _layer_mean(trace, "value_norm", index)
                anchors, others = (mean(group_mean(value_ST, group)[steps]) for group in (anchors_ST, others_ST))
                numbers["value_ratio"][position] = anchors / others
        shares = shares_by_half(numbers, depths(trace, np.array(layers)))
        by_layer = {name: ("layer", values) for name, values in numbers.items()}
        return xr.Dataset({**by_layer, **shares}, coords={"layer": layers})

    def draw_heatmap(
        self,
        traces: Traces,
        *,
        layer: Layers = None,
        rule: str = "sigma(3)",
        sample: int | str | None = None,
        head: int | None = None,
        step: int | None = None,
        backend: str,
    ) -> Figure | pd.DataFrame:
        """Draw maps of score, norm product and cosine for one trace, with anchors hatched and marked above the map.

        Maps show queries × keys of `step` (the last) for a head whose queries and keys were recorded, otherwise steps ×
        positions of the column means, for one head or the mean over heads.
        """
        trace = pick(traces, sample)[0]
        single = () if head is None else tuple(FACTORS)
        require(trace, *single, means=["received", *FACTORS], finding=self.name)
        maps = _maps(trace, few_layers(trace)[-1:] if layer is None else choose_layers(trace, layer), rule, head, step)
        if backend == "none":
            return pd.concat([_cells(trace, *one) for one in maps], ignore_index=True)
        return _draw_maps(trace, maps, rule, head)


def _check_rule(trace: Trace, rule: str) -> None:
    """Raise an error for a rule that a summary was not made with, since it has no scores of single heads."""
    known = [str(one) for one in trace.data["rule"].values]
    if rule not in known:
        sample = trace.data.attrs.get("sample_id") or trace.model
        raise FloatLensError(
            f"geometry by {rule} needs qk of single heads, and the trace of {sample!r} is a summary, made with the rules "
            f"{', '.join(known)}; use one of these, or trace again with --detail full"
        )


def _layer(trace: Trace, name: str, layer: int) -> Array:
    found = trace.data[name].sel(layer=layer).transpose("step", "head", "position").values
    return np.asarray(found, dtype=np.float32)


def _layer_mean(trace: Trace, name: str, layer: int) -> Array:
    """Mean over heads of one layer (step, position)."""
    own = trace.data[name if name in trace.data else f"{name}_mean"].sel(layer=layer)
    mean = mean_over_heads(own) if set(own.dims).intersection(HEADS) else own
    return np.asarray(mean.transpose("step", "position").values, dtype=np.float32)


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


def _maps(trace: Trace, layers: list[int], rule: str, head: int | None, step: int | None) -> list[tuple[Any, ...]]:
    """(layer, factor, axis name, values, anchors): anchors per step, or of the one step drawn."""
    found = []
    full = "queries" in trace.data and "keys" in trace.data and head is not None
    steps = trace.data["step"].values
    at = int(steps[-1]) if step is None else step
    if at not in steps:
        raise FloatLensError(f"step {at} was not recorded for {trace.model}; recorded: {spell(steps)}")
    position = None if head is None else _place(trace, head)
    for index in layers:
        a_ST = profile(trace, index).values[:, 0]
        anchors_ST = find_anchors(a_ST, rule, trace.attention_kind)
        if full:
            assert head is not None and position is not None
            q, k = (_until(trace, name, index, at) for name in ("queries", "keys"))
            key = head // (_count_heads(trace) // len(k))
            maps = dict(zip(FACTORS, (m[0] for m in factors(q[[position]], k[[key]])), strict=True))
            if trace.attention_kind == "causal":
                above = np.triu(np.ones(maps["qk"].shape, bool), 1)
                maps = {name: np.where(above, np.nan, m) for name, m in maps.items()}
            row = anchors_ST[list(steps).index(at)][None]
            found += [(index, name, "query", values, row) for name, values in maps.items()]
            continue
        for name in FACTORS:
            values = _layer_mean(trace, name, index) if position is None else _layer(trace, name, index)[:, position]
            found.append((index, name, "step", values, anchors_ST))
    return found


def _place(trace: Trace, head: int) -> int:
    """The index of a head among those that were recorded."""
    there = [int(n) for n in trace.data["head"].values]
    if head not in there:
        raise FloatLensError(f"head {head} was not recorded for {trace.model}; recorded: {spell(there)}")
    return there.index(head)


def _count_heads(trace: Trace) -> int:
    """The model's number of heads (only some may be recorded); needed to find the key head of a query head."""
    there = [int(n) for n in trace.data["head"].values]
    count = int(trace.data.attrs.get("n_heads", 0)) or (len(there) if there == list(range(len(there))) else 0)
    if not count:
        raise FloatLensError(f"the trace of {trace.model} does not hold the number of heads; trace it again")
    return count


def _until(trace: Trace, name: str, layer: int, step: int) -> Array:
    """Queries or keys as of a step; with a cache each position is recorded at the step that computed it."""
    array = trace.data[name]
    own = "layer" if "layer" in array.dims else f"{name}_layer"
    if layer not in trace.data[own].values:
        raise FloatLensError(f"{name} of layer {layer} were not recorded; recorded: {spell(trace.data[own].values)}")
    found_SHTD = array.isel({own: list(trace.data[own].values).index(layer)}).sel(step=slice(None, step)).values
    latest = np.full(found_SHTD.shape[1:], np.nan)
    for one in found_SHTD:
        latest = np.where(np.isfinite(one), one, latest)
    return latest


def _cells(trace: Trace, layer: int, name: str, rows: str, values: Array, anchors: Array) -> pd.DataFrame:
    count, width = values.shape
    marked = np.broadcast_to(anchors, values.shape)
    return pd.DataFrame(
        {
            "model": trace.model,
            "sample": str(trace.data.attrs.get("sample_id", "")),
            "factor": name,
            "layer": layer,
            "row": np.repeat(np.arange(count), width),
            "row_is": rows,
            "position": np.tile(np.arange(width), count),
            "token": np.tile(np.array(trace.texts(), dtype=object), count),
            "value": values.ravel(),
            "anchor": marked.ravel(),
        }
    )


def _draw_maps(trace: Trace, maps: list[tuple[Any, ...]], rule: str, head: int | None) -> Figure:
    layers = list(dict.fromkeys(m[0] for m in maps))
    tokens = trace.texts()
    with style.sheet():
        figure = style.new_figure(0.6 + (2.1 if maps[0][2] == "query" else 1.35) * len(layers))
        grid = figure.subplots(len(layers), 3, squeeze=False, sharex=True, sharey=True)
        for layer, name, rows, values, anchors in maps:
            axes = grid[layers.index(layer), list(FACTORS).index(name)]
            lowest, highest = float(np.nanmin(values)), float(np.nanmax(values))
            if name == "qk_norm":
                middle = float(np.nanmedian(values))  # keep noise from filling the colour scale
                norm, cmap = Normalize(min(lowest, 0.8 * middle), max(highest, 1.2 * middle)), style.SEQUENTIAL
            else:
                reach = max(-lowest, highest, 1e-9)
                norm, cmap = TwoSlopeNorm(0.0, -reach, reach), style.DIVERGING
            mesh = draw.attention_map(axes, values, cmap=cmap, norm=norm)
            if rows == "step":
                draw.hatch_anchors(axes, anchors)
            else:
                draw.mark_columns(axes, anchors.any(axis=0))
            draw.name_on_hover(axes, values, tokens, rows=rows)
            if layer == layers[0]:
                axes.set_title(FACTORS[name], pad=10)
            if name == "qk":
                axes.set_ylabel(f"layer {layer}\n{rows}")
            if layer == layers[-1]:
                axes.set_xlabel("key position" if rows == "query" else "position")
            figure.colorbar(mesh, ax=axes, pad=0.01, aspect=14).ax.tick_params(labelsize=6)
        which = "mean over heads" if head is None else f"head {head}"
        marked = "framed" if maps[0][2] == "step" else "marked by triangles"
        style.caption(
            figure, f"{style.short(trace.model)}, {which}; anchors by {parse_rule(rule).id} {marked}; scores unscaled."
        )
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


geometry = register_finding(Geometry())
measure, figure, claims = geometry.measure, geometry.figure, geometry.claims
