"""Drift: whether the anchors move while the model writes.

Section 3.1 of arXiv 2601.07894: the anchors of a masked diffusion model (MDM) move over denoising steps, those of an
autoregressive model (ARM) stay at the first token.

Averaged over all query rows, as in the paper's figures, an ARM's anchors cannot move: received attention is a running mean
to which each step adds one row. In the single row that writes at a step they must move, because attention is local. The two
kinds of model are therefore compared by windows of rows on the same prose (`window`), and an MDM's movement over all rows
with two nulls: *reveal*, each token of constant strength once it is revealed, and *untrained*, the same steps through the
same network with redrawn weights. A study makes the prose and the replays (`studies.parts`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from floatlens.anchors import find_anchors, parse_rule
from floatlens.findings import definitions, draw, positions, published, style
from floatlens.findings.finding import Finding, declare_finding, register_claim
from floatlens.findings.positions import AVERAGE, Layers, anchors_of, few_layers, profile
from floatlens.findings.samples import (
    Traces,
    as_traces,
    mean,
    mean_over,
    pick,
    question_of,
    require,
    sample_name,
    split_id,
)
from floatlens.findings.sink import AS_IS, texts_of
from floatlens.findings.verdict import Verdict, difference, mean_of, sides_of
from floatlens.stats import NAN, Array, interval_of_mean
from floatlens.store.runs import TEXTS, RunTraces
from floatlens.trace.trace import Trace

TOKENS_PER_INCH = 9  # tokens that are readable below a column with a colour bar
UNTRAINED, OTHER_WORDS, OTHER_TASK = "untrained", "other words", "another task"  # replays of a model's own answers
VARIANTS = (UNTRAINED, OTHER_WORDS, OTHER_TASK)
TASKS = {
    "world:common": "question",
    "world:fresh": "question",
    "world:long": "free continuation",
    "world:hops": "two questions",
    "world:slots": "slot filling",
    "world:needle": "key-value retrieval",
}


def measure_all(traces: Traces, **options: Any) -> xr.Dataset:
    """Measure the models' own traces; replays of their answers and prose that they read add what claims compare with."""
    own, replays = split_replays(traces)
    measured = Finding.measure_all(drift, own, **options)
    floating, renewed, words, task = np.full((4, measured.sizes["sample"]), np.nan)
    rows = zip(measured["model"].values, map(question_of, measured["sample_id"].values), strict=True)
    row_of = {key: row for row, key in enumerate(rows)}
    for trace in replays:
        row = row_of.get((trace.model, question_of(sample_name(trace))))
        if row is None:
            continue
        if (variant := variant_of(trace)) == UNTRAINED:
            null = drift.measure_one(trace, **options)
            floating[row], renewed[row] = mean(null["floating"].values), float(null["renewed"])
        else:
            apart = definitions.total_variation(*(_shared_mass(each, **options) for each in (own[row], trace)))
            (words if variant == OTHER_WORDS else task)[row] = apart
    nulls = np.maximum(floating, mean_over(measured["floating_reveal"].values, 1))
    made = {
        "floating_untrained": floating,
        "renewed_untrained": renewed,
        "beyond_nulls": mean_over(measured["floating"].values, 1) - nulls,
        "renewed_beyond": measured["renewed"].values - renewed,
        "instruction": task - words,
    }
    return measured.assign({name: ("sample", values) for name, values in made.items()} | _windows(traces))


def draw_heatmap(
    traces: Traces,
    *,
    layer: Layers = None,
    rule: str = "sigma(3)",
    sample: int | str | None = None,
    positions: slice | None = None,
    paper: bool = False,
    backend: str,
) -> Figure | pd.DataFrame:
    """Draw received attention, steps × positions, with anchors and commits; one column per model, one row per layer.

    Layers are those given, "average", or by default as many as make four maps. `positions` selects a part of the
    sequence. `paper` adds the published maps of LLaDA, layers 0 and 31.
    """
    chosen = pick(traces, sample)
    room = style.PANELS - 2 * paper
    if layer is None:  # as many panels as can be compared at a glance
        chosen = chosen[:room]
    maps: list[tuple[Trace, int, xr.Dataset]] = []
    for trace in chosen:
        require(trace, means=drift.needs_means, finding=drift.name)
        few = few_layers(trace)
        some = {1: few[-1:], 2: [few[0], few[-1]]}.get(room // len(chosen), few)
        maps += _maps(trace, *anchors_of(trace, rule, some if layer is None else layer))
    if paper:
        trace = published.temporal_trace()
        maps += _maps(trace, profile(trace), published.hatched())
    maps = [(trace, index, each.isel(position=positions or slice(None))) for trace, index, each in maps]
    if backend == "none":
        frames = []
        for trace, layer, each in maps:
            cells = each.to_dataframe(["step", "position"]).reset_index()
            frames.append(cells.assign(model=trace.model, sample=sample_name(trace), layer=layer))
        return pd.concat(frames, ignore_index=True)[["model", "sample", "layer", *cells]]
    return _draw(maps, rule)


@declare_finding(measure_all=measure_all, draw_heatmap=draw_heatmap)
def drift(trace: Trace, *, layer: Layers = None, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure how much the anchors move, per sample and layer. Definitions: `definitions`."""
    profile_SLT, anchors = anchors_of(trace, rule, layer)
    a, layers = profile_SLT.values, profile_SLT["layer"].values
    mass_SLT = np.where(anchors, np.nan_to_num(a), 0.0)
    p_SLT = definitions.anchor_mass(np.nan_to_num(a), anchors)
    written = np.isin(trace.data["step"].values, positions.writing_steps(trace))
    renewal_L = np.array([definitions.renewal(mass_SLT[written, n]) for n in range(len(layers))])
    between, within = definitions.layer_distance(p_SLT)
    by_layer: dict[str, Any] = {
        "floating": floating_of(p_SLT),
        "floating_reveal": _reveal(trace, a, rule),
        "renewal": renewal_L,
        "without_anchors": 1 - definitions.has_anchors(p_SLT).mean(axis=0),
        "n_anchors": anchors.sum(axis=-1).mean(axis=0),
        **_shift(trace, a),
        **_writing(trace, layer, rule),
    }
    return xr.Dataset(
        {
            **{name: ("layer", numbers) for name, numbers in by_layer.items()},
            "renewed": weighted_mean(renewal_L, mass_SLT[written].sum(axis=(0, 2))),
            "between_layers": between,
            "within_layers": within,
            "layer_difference": between - within,
            "anchor_mass": ("position", definitions.normalise(p_SLT.sum(axis=(0, 1)))),
            "length": a.shape[-1],
            "task": np.array(task_of(trace), dtype=object),
        },
        coords={"layer": layers, "position": profile_SLT["position"]},
    )


def task_of(trace: Trace) -> str:
    """The kind of task of a trace's data set; the name of the data set if it is not one of the synthetic world's."""
    data = split_id(sample_name(trace))[0]  # other runs than studies do not name their data
    return TASKS.get(data, data) or "one data set"


def floating_of(p_SLT: Array) -> Array:
    """Floating of each layer."""
    return np.array([definitions.floating(p_SLT[:, n]) for n in range(p_SLT.shape[1])])


def weighted_mean(values_L: Array, weights_L: Array) -> float:
    """Mean of the layers that have a value, weighted."""
    weights_L = np.where(np.isfinite(values_L), weights_L, 0.0)
    return float(np.nan_to_num(values_L) @ weights_L / weights_L.sum()) if weights_L.sum() > 0 else NAN


def _reveal(trace: Trace, a_SLT: Array, rule: str) -> Array:
    """Floating of the reveal null, by layer; only for MDMs, whose positions all exist from the start."""
    if trace.kind != "mdm" or not np.isfinite(a_SLT).all():
        return np.full(a_SLT.shape[1], np.nan)
    revealed_ST = trace.data["committed_at"].values < trace.data["step"].values[:, None]
    null_SLT = np.stack([definitions.reveal_null(a_SLT[:, n], revealed_ST) for n in range(a_SLT.shape[1])], axis=1)
    return floating_of(definitions.anchor_mass(null_SLT, find_anchors(null_SLT, rule, trace.attention_kind)))


def _shift(trace: Trace, a_SLT: Array) -> dict[str, Array]:
    """Movement of the centre, raw and beyond the null; only for MDMs, whose positions all exist from the start."""
    shift, movement = np.full((2, a_SLT.shape[1]), np.nan)
    committed = trace.data["committed_at"].values
    open_T, ends = committed >= 0, a_SLT[[0, -1]]
    if trace.kind == "mdm" and open_T.any() and np.isfinite(ends).all() and len(a_SLT) > 1:
        masked = open_T & (committed >= trace.data["step"].values[[0, -1], None])
        for n in range(a_SLT.shape[1]):
            movement[n] = definitions.movement(ends[:, n], int(open_T.sum()))
            shift[n] = definitions.shift(ends[:, n], masked, int(open_T.sum()))
    return {"shift": shift, "movement": movement}


def _writing(trace: Trace, layer: Layers, rule: str) -> dict[str, Array]:
    """Floating of the writing rows, and how many of the written positions they attend to; NaN if not recorded."""
    average = layer == "average"
    chosen = positions.choose_layers(trace, None if average else layer)
    rows_SLT = positions.writing_profile(trace) if "received_writing" in trace.data else np.empty((0, 0, 0))
    if not len(rows_SLT):
        return dict.fromkeys(("floating_writing", "spread"), np.full(1 if average else len(chosen), np.nan))
    rows_SLT = rows_SLT[:, [positions.index_of(trace, "layer", n) for n in chosen]]
    rows_SLT = rows_SLT.mean(axis=1, keepdims=True) if average else rows_SLT
    # a writing row sees all positions that exist (earlier ones, or all): its baseline is constant
    p_SLT = definitions.anchor_mass(np.nan_to_num(rows_SLT), find_anchors(rows_SLT, rule, "bidirectional"))
    known_ST = trace.data["committed_at"].values < positions.writing_steps(trace)[:, None]
    known_SLT = known_ST[:, None] & np.isfinite(rows_SLT)
    spread_SL = definitions.effective_positions(np.where(known_SLT, rows_SLT, 0.0)) / known_SLT.sum(axis=-1)
    return {"floating_writing": floating_of(p_SLT), "spread": mean_over(spread_SL, 0)}


# Replays of a model's own answers, and prose that it read


def split_replays(traces: Traces) -> tuple[Any, list[Trace]]:
    """Separate models' own traces from the replays of their answers."""
    if isinstance(traces, RunTraces):
        return traces, [trace for trace in traces.replays() if variant_of(trace) in VARIANTS]
    every = as_traces(traces)
    replays = [trace for trace in every if variant_of(trace) in VARIANTS]
    own = [trace for trace in every if variant_of(trace) not in VARIANTS] if replays else every
    return own, replays


def variant_of(trace: Trace) -> str:
    """How an answer was replayed, from the middle of the sample id of a study."""
    return split_id(sample_name(trace))[1]


def _shared_mass(trace: Trace, *, layer: Layers = None, rule: str = "sigma(3)") -> Array:
    """Where the anchors lie on the question and the answer, mean over steps and layers: the same tokens in all replays."""
    a_SLT, anchors = anchors_of(trace, rule, layer)
    p_SLT = definitions.anchor_mass(np.nan_to_num(a_SLT.values), anchors)
    return definitions.normalise(p_SLT.sum(axis=(0, 1))[positions.region_positions(trace, "query", "answer")])


def _windows(traces: Traces) -> dict[str, Any]:
    """Floating and moved attention of windows in prose as it is, one entry per model and text; empty without texts."""
    folders = traces.folders if isinstance(traces, RunTraces) else []
    paths = [each.path for each in folders if (each.path / TEXTS / f"{TEXTS}.parquet").exists()]
    if not paths:
        return {}
    table = texts_of(paths)
    table = table[(table["condition"] == AS_IS) & table["error"].isna()]
    table = table.assign(text=table["data"] + ": " + table["id"].astype(str))
    kinds = {"floating": float, "moved": float, "model": object, "kind": object, "text": object}
    return {f"window_{name}": ("text", table[name].to_numpy(kind)) for name, kind in kinds.items()}


# Claims


def _windows_as_samples(measured: xr.Dataset, *models: str | None) -> xr.Dataset | Verdict:
    """The windows with their texts as samples; without any, a verdict with the reason."""
    named = tuple(model for model in models if model)
    if "window_floating" not in measured:
        return Verdict(models=named, reason="no prose was read; run floatlens study with drift or sink")
    if unread := [model for model in named if model not in measured["window_model"].values]:
        return Verdict(models=named, reason=f"no prose was read with {unread[0]}")
    columns = {"window_model": "model", "window_kind": "model_kind", "window_text": "sample_id", "text": "sample"}
    kept = [name for name in measured.variables if str(name).startswith("window_")]
    return measured[kept].rename(columns).set_coords(["model", "model_kind", "sample_id"])


@register_claim("drift.fixed")
def fixed(measured: xr.Dataset, *, arm: str | None = None) -> Verdict:
    texts = _windows_as_samples(measured, arm)
    if isinstance(texts, Verdict):
        return texts
    beside = {"moved attention": texts["window_moved"].values}
    return mean_of(texts, 1 - texts["window_floating"].values, kind="arm", model=arm, beside=beside, what="texts")


@register_claim("drift.moves")
def moves(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    texts = _windows_as_samples(measured, mdm, arm)
    if isinstance(texts, Verdict):
        return texts
    beside = {"moved attention": texts["window_moved"].values}
    return difference(texts, texts["window_floating"].values, mdm=mdm, arm=arm, beside=beside)


@register_claim("drift.task")
def task_matters(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    [rows], known = sides_of(measured, mdm=mdm)
    if known.reason:
        return known
    mass_NT, tasks = np.nan_to_num(measured["anchor_mass"].values[rows]), measured["task"].values[rows].astype(str)
    matched = definitions.length_matched_tasks(mass_NT, tasks, measured["length"].values[rows])
    if matched is None:
        none = f"no two tasks have prompts of equal length; tasks: {', '.join(sorted(set(tasks)))}"
        return replace(known, reason=none)
    between, within, pseudo_values, p = matched
    value, interval = interval_of_mean(pseudo_values)
    details = {"between tasks": between, "within a task": within, "p of a permutation": p}
    reason, n = f"p = {p:.3f} by permutation", len(pseudo_values)
    return replace(known, value=value, interval=interval, n=n, details=details, reason=reason)


# The map


def _maps(trace: Trace, a_SLT: xr.DataArray, anchors_SLT: Array) -> list[tuple[Trace, int, xr.Dataset]]:
    """The trace, the layer, and what the layer's map shows, labelled by step and position, of each layer."""
    steps, dims = trace.data["step"].values, ("step", "position")
    tokens_ST = np.array([trace.texts(int(step)) for step in steps], dtype=object)
    made = []
    for n, layer in enumerate(a_SLT["layer"].values):
        cells = {"token": tokens_ST, "received": a_SLT.values[:, n], "anchor": anchors_SLT[:, n]}
        shown: dict[str, Any] = {name: (dims, values_ST) for name, values_ST in cells.items()}
        shown["committed_at"] = ("position", trace.data["committed_at"].values)
        coords = {"step": steps, "position": np.arange(tokens_ST.shape[1])}
        made.append((trace, int(layer), xr.Dataset(shown, coords)))
    return made


def _draw(maps: list[tuple[Trace, int, xr.Dataset]], rule: str) -> Figure:
    norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(shown["received"], initial=1e-9)) for *_, shown in maps))
    columns = min(2, len(maps))
    with style.sheet():
        figure = style.new_figure(0.5 + 1.7 * -(-len(maps) // columns))
        grid = style.panels(figure, len(maps), columns)
        for axes, (trace, layer, shown) in zip(grid.flat, maps, strict=False):
            first, stop = int(shown["position"][0]), int(shown["position"][-1]) + 1
            image = draw.attention_map(axes, shown["received"].values, norm=norm)
            draw.hatch_anchors(axes, shown["anchor"].values)
            draw.name_ticks(axes.yaxis, shown["step"].values.tolist())
            draw.commit_front(axes, shown["committed_at"].values, shown["step"].values)
            draw.mark_regions(axes, trace.regions, slice(first, stop), trace.gold)
            draw.token_axis(axes, trace.texts()[first:stop], first, int(TOKENS_PER_INCH * style.WIDTH / columns))
            of = "mean of layers" if layer == AVERAGE else f"layer {layer}"
            axes.set_title(f"{style.short(trace.model)} ({trace.kind.upper()}), {of}", pad=14)
            axes.set_ylabel("step")
        figure.colorbar(image, ax=grid, pad=0.01, aspect=24).ax.tick_params(labelsize=6)
        style.caption(
            figure,
            f"Received attention (mean over heads and queries) by position; hatched or framed: anchors by "
            f"{parse_rule(rule).id}; dots: where and when a token is committed; * gold document.",
        )
    return figure


measure, figure, claims = drift.measure, drift.figure, drift.claims
