"""Drift: do the anchors move while the model writes?

Section 3.1 of arXiv 2601.07894. An MDM's anchors wander over denoising steps; an ARM's stay at the first token.
Other work (arXiv 2509.24014) says that attention patterns hardly change over steps, so the step-to-step similarity of
per-head patterns stands beside the anchors' movement: both can be true, of different heads and layers.

An ARM's sequence grows. Two of its steps are compared on the positions that exist at both, centres of mass on those
that exist at all steps. And its received attention is a running mean to which a step adds one row, which makes it calm
by construction; `top_turnover_newest` therefore looks at that row alone, and asks only whether its strongest position
stays, because what else one query attends to is its own business.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.anchors import parse_rule
from floatlens.findings import draw, style
from floatlens.findings.by_model import by_model, extreme, mean
from floatlens.findings.finding import Finding, ReportText, Table, as_table, register_claim, register_finding
from floatlens.findings.numbers import layer_lines
from floatlens.findings.received import AVERAGE, Layers, anchors_of, few_layers, newest_rows, profile
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, per_sample, pick, require
from floatlens.findings.sides import compare, one_side
from floatlens.findings.spelling import number, percent
from floatlens.findings.verdict import Verdict
from floatlens.record.trace import Trace
from floatlens.stats import (
    INCONCLUSIVE,
    NOT_SUPPORTED,
    SUPPORTED,
    bootstrap_difference,
    bootstrap_mean,
    judge_threshold,
)

VIEWS = ("heatmap", "numbers")
STILL = 0.1  # anchors that move lose more than one in ten from a step to the next; those that stay lose fewer
LABELS = {
    "turnover": "turnover (1 − Jaccard)",
    "dwell": "dwell time (steps)",
    "head_similarity": "similarity of heads'\npatterns, step to step (cosine)",
}


def measure(traces: Traces, *, layer: Layers = None, rule: str = "sigma(3)") -> xr.Dataset:
    """Do the anchors move? Numbers of each sample and layer.

    | variable | dims | what |
    |---|---|---|
    | turnover | sample, layer | 1 − Jaccard of the anchor sets of neighbouring steps, mean over steps that have any |
    | turnover_total | sample, layer | 1 − Jaccard of the first and the last step's anchors |
    | top_turnover | sample, layer | share of steps at which the strongest position changes |
    | top_turnover_newest | sample, layer | the same for the newest query's row alone (ARM; NaN for an MDM) |
    | dwell | sample, layer | steps that a position stays an anchor without a break |
    | n_anchors | sample, layer | mean number of anchors at a step |
    | centre, anchor_centre | sample, step, layer | centre of mass of received attention; of the anchors' part |
    | slope, anchor_slope | sample, layer | its change per step, in positions |
    | shift, anchor_shift | sample, layer | its change over the whole decoding, in shares of the sequence |
    | wasserstein | sample, layer | 1-Wasserstein distance between the profiles of neighbouring steps, in positions |
    | top_variance_steps | sample, layer | variance over steps of the position of the strongest anchor |
    | top_variance_layers | sample | variance over layers of it, mean over steps |
    | head_similarity | sample, layer | cosine of a head's received attention at neighbouring steps, mean over heads |
    """
    rule_id = parse_rule(rule).id
    return per_sample(traces, lambda trace: _measure_one(trace, layer, rule), "drift", rule=rule_id)


def _measure_one(trace: Trace, layer: Layers, rule: str) -> xr.Dataset:
    require(trace, "received", finding="drift")
    profile_SLT = profile(trace, layer)
    a = profile_SLT.values
    anchors = anchors_of(a, rule, trace.attention)
    there = np.isfinite(a)
    always = there.all(axis=(0, 1))
    weights = np.where(anchors & always, a, np.nan)
    centres = {"": centre(np.where(always, a, np.nan)), "anchor_": centre(weights)}
    top = np.where(there, a, -1.0).argmax(axis=-1).astype(float)
    newest = np.full(a.shape[1], np.nan)
    precise = trace.data["received"].dtype != np.float16  # differences of rounded sums would be noise
    if trace.cached and len(a) > 2 and precise:
        rows = newest_rows(a)
        newest = mean_over(turnover(anchors_of(rows, "top(1)", trace.attention), np.isfinite(rows)), 0)
    by_layer: dict[str, Array] = {
        "turnover": mean_over(turnover(anchors, there), 0),
        "top_turnover": mean_over(turnover(anchors_of(a, "top(1)", trace.attention), there), 0),
        "top_turnover_newest": newest,
        "turnover_total": turnover(anchors[[0, -1]], there[[0, -1]])[0],
        "dwell": dwell(anchors),
        "n_anchors": anchors.sum(axis=-1).mean(axis=0),
        "wasserstein": mean_over(wasserstein(a), 0),
        "top_variance_steps": top.var(axis=0),
        "head_similarity": _head_similarity(trace, profile_SLT["layer"].values),
    }
    steps = profile_SLT["step"].values
    for name, series in centres.items():
        by_layer[f"{name}slope"] = slope(series, steps)
        by_layer[f"{name}shift"] = slope(series, steps) * (steps[-1] - steps[0]) / always.sum()
    coords = {"layer": profile_SLT["layer"], "step": profile_SLT["step"]}
    found = xr.Dataset({k: ("layer", v) for k, v in by_layer.items()}, coords=coords)
    for name, series in centres.items():
        found[f"{name}centre"] = (("step", "layer"), series)
    found["top_variance_layers"] = top.var(axis=1).mean()
    return found


def _head_similarity(trace: Trace, layers: Array) -> Array:
    """Mean over heads and steps, one layer at a time: the trace's largest variable is never copied whole."""
    received = trace.data["received"].transpose("step", "layer", "head", "position")
    chosen = trace.data["layer"].values if AVERAGE in layers else layers
    found = []
    for layer in chosen:
        one_SHT = received.sel(layer=layer).values
        found.append(float(mean_over(similarity(one_SHT), (0, 1))) if len(one_SHT) > 1 else float("nan"))
    return np.array([np.mean(found)]) if AVERAGE in layers else np.array(found)


def figure(
    traces: Traces,
    *,
    layer: Layers = None,
    rule: str = "sigma(3)",
    sample: int | str | None = None,
    positions: slice | None = None,
    view: str = "heatmap",
    backend: str = "matplotlib",
) -> Figure | pd.DataFrame:
    """Received attention, steps × positions, anchors hatched, commits as dots (`heatmap`), or per layer (`numbers`).

    One column a model, one row a layer: those asked for, "average", or the first, middle and last. `positions`
    cuts out a part of the sequence. With `backend="none"` the data that would be drawn, one row a cell.
    """
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    if view == "numbers":
        measured = traces if is_measured(traces, "drift") else measure(traces, layer=layer, rule=rule)
        return layer_lines(measured, LABELS, backend=backend)
    panels = []
    for trace in pick(traces, sample):
        require(trace, "received", finding="drift")
        found = profile(trace, few_layers(trace) if layer is None else layer)
        anchors = anchors_of(found.values, rule, trace.attention)
        for place, index in enumerate(found["layer"].values):
            panels.append((trace, int(index), found.values[:, place], anchors[:, place]))
    if backend == "none":
        return pd.concat([_cells(*panel, positions) for panel in panels], ignore_index=True)
    return _draw(panels, rule, positions)


def _cells(trace: Trace, layer: int, a_ST: Array, anchors_ST: Array, positions: slice | None) -> pd.DataFrame:
    shown = np.arange(a_ST.shape[1])[positions or slice(None)]
    steps = trace.data["step"].values
    return pd.DataFrame(
        {
            "model": trace.model,
            "sample": str(trace.data.attrs.get("sample_id", "")),
            "layer": layer,
            "step": np.repeat(steps, len(shown)),
            "position": np.tile(shown, len(steps)),
            "token": [tokens[p] for s in steps for tokens in [trace.strings(int(s))] for p in shown],
            "received": a_ST[:, shown].ravel(),
            "anchor": anchors_ST[:, shown].ravel(),
            "committed_at": np.tile(trace.data["committed_at"].values[shown], len(steps)),
        }
    )


def _draw(panels: list[tuple[Trace, int, Array, Array]], rule: str, positions: slice | None) -> Figure:
    models = list(dict.fromkeys(trace.model for trace, *_ in panels))
    rows = max(sum(trace.model == m for trace, *_ in panels) for m in models)
    with style.sheet():
        figure = style.new_figure(0.75 + 1.35 * rows)
        grid = figure.subplots(rows, len(models), squeeze=False)
        used: dict[str, int] = dict.fromkeys(models, 0)
        for trace, layer, a_ST, anchors_ST in panels:
            row, column = used[trace.model], models.index(trace.model)
            used[trace.model] += 1
            _panel(grid[row, column], trace, layer, a_ST, anchors_ST, positions, last=row == rows - 1, figure=figure)
            if row == 0:
                kind = trace.kind.upper()
                grid[row, column].set_title(f"{style.short(trace.model)} ({kind})", pad=14, weight="bold")
            if column:
                grid[row, column].set_ylabel("")
        for column, model in enumerate(models):
            for row in range(used[model], rows):
                grid[row, column].set_axis_off()
        style.caption(
            figure,
            f"Received attention (mean over heads and queries); hatched or framed: anchors by {parse_rule(rule).id}; "
            "dots: where and when a token is committed; * gold document.",
        )
    return figure


def _panel(
    axes: Any,
    trace: Trace,
    layer: int,
    a_ST: Array,
    anchors_ST: Array,
    positions: slice | None,
    last: bool,
    figure: Figure,
) -> None:
    start, stop, _ = (positions or slice(None)).indices(a_ST.shape[1])
    shown = slice(start, stop)
    values = a_ST[:, shown]
    mesh = draw.attention_map(axes, values)
    draw.hatch_anchors(axes, anchors_ST[:, shown])
    draw.name_rows(axes, trace.data["step"].values.tolist())
    draw.commit_front(axes, trace.data["committed_at"].values[shown], trace.data["step"].values)
    draw.mark_regions(axes, trace.regions, shown, trace.gold)
    tokens = trace.strings()[shown]
    draw.name_on_hover(axes, values, tokens, start)
    axes.set_ylabel(("mean of layers" if layer == AVERAGE else f"layer {layer}") + "\nstep")
    if last:
        draw.token_axis(axes, tokens, first=start)
        axes.set_xlabel("position")
    else:
        axes.set_xticklabels([])
    figure.colorbar(mesh, ax=axes, pad=0.01, aspect=12).ax.tick_params(labelsize=6)


@register_claim(
    "drift.moves",
    finding="drift",
    sentence="Anchors move in the MDM and not in the ARM",
    source="arXiv 2601.07894, section 3.1",
)
def claim(traces: Traces, *, rule: str = "sigma(3)", mdm: str | None = None, arm: str | None = None) -> Verdict:
    """Anchors move in the MDM and not in the ARM.

    Supported when the MDM's turnover lies above one in ten, the ARM's below it, and their difference above zero, and
    the MDM's strongest position changes more often than that of the ARM's newest query by itself.
    """
    measured = traces if is_measured(traces, "drift") else measure(traces, rule=rule)
    return compare(
        measured,
        mean_over(measured["turnover"].values, 1),
        finding="drift",
        claim="Anchors move in the MDM and not in the ARM",
        statistic="turnover of anchors from step to step, MDM minus ARM, mean over layers",
        mdm=mdm,
        arm=arm,
        decide=lambda interval, sides: _moves(measured, interval, sides),
    )


def _moves(
    measured: xr.Dataset, interval: tuple[float, float], sides: dict[str, Array]
) -> tuple[str, str, dict[str, Any]]:
    top, newest = (mean_over(measured[n].values, 1) for n in ("top_turnover", "top_turnover_newest"))
    ids = {name: [str(i) for i in measured["sample_id"].values[sides[name]]] for name in ("mdm", "arm")}
    (mdm, mdm_interval), (arm, arm_interval) = (bootstrap_mean(sides[f"{s}_values"]) for s in ("mdm", "arm"))
    row, row_interval, _ = bootstrap_difference(top[sides["mdm"]], newest[sides["arm"]], ids["mdm"], ids["arm"])
    details = {
        "turnover of the MDM": [mdm, *mdm_interval],
        "turnover of the ARM": [arm, *arm_interval],
        "changes of the strongest position, MDM minus the ARM's newest query": [row, *row_interval],
        "moving means a turnover above": STILL,
    }
    numbers = f"(turnover {mdm:.2f} against {arm:.2f})"
    if judge_threshold(arm_interval, STILL) == SUPPORTED:
        return NOT_SUPPORTED, f"the ARM's anchors move too {numbers}", details
    if judge_threshold(mdm_interval, STILL) == NOT_SUPPORTED or judge_threshold(interval) == NOT_SUPPORTED:
        return NOT_SUPPORTED, f"the MDM's anchors do not move {numbers}", details
    if not (
        judge_threshold(interval) == judge_threshold(mdm_interval, STILL) == SUPPORTED
        and judge_threshold(arm_interval, STILL) == NOT_SUPPORTED
    ):
        return INCONCLUSIVE, f"an interval crosses its threshold {numbers}", details
    if np.isfinite(row) and judge_threshold(row_interval) != SUPPORTED:
        why = f"the strongest position of the ARM's newest query changes as often ({np.nanmean(newest[sides['arm']]):.2f})"
        return INCONCLUSIVE, why, details
    return SUPPORTED, numbers.strip("()"), details


@register_claim(
    "drift.shift",
    finding="drift",
    sentence="Anchors shift right over steps",
    source="arXiv 2601.07894, section 3.1",
)
def claim_shift(traces: Traces, *, rule: str = "sigma(3)", mdm: str | None = None) -> Verdict:
    """Anchors shift right over steps: the centre of the MDM's anchors moves to later positions."""
    measured = traces if is_measured(traces, "drift") else measure(traces, rule=rule)
    return one_side(
        measured,
        mean_over(measured["anchor_shift"].values, 1),
        finding="drift",
        claim="Anchors shift right over steps",
        statistic="shift of the anchors' centre over the decoding, in shares of the sequence, mean over layers",
        mdm=mdm,
        beside={"shift of the centre of all received attention": mean_over(measured["shift"].values, 1)},
    )


def turnover(anchors: Array, there: Array | None = None) -> Array:
    """Share of anchors replaced from one step to the next: 1 − Jaccard, on positions that exist at both steps.

    Steps come first, positions last. NaN when neither step has an anchor.

    >>> turnover(np.array([[1, 0, 0], [0, 1, 0]], bool))
    array([1.])
    """
    both = np.ones_like(anchors[1:]) if there is None else there[1:] & there[:-1]
    before, after = anchors[:-1] & both, anchors[1:] & both
    union = (before | after).sum(axis=-1)
    return np.where(union > 0, 1.0 - (before & after).sum(axis=-1) / np.maximum(union, 1), np.nan)


def dwell(anchors: Array) -> Array:
    """Mean number of steps that a position stays an anchor without a break; NaN without anchors.

    >>> dwell(np.array([[1, 0], [1, 0], [0, 1]], bool))
    array(1.5)
    """
    begins = np.concatenate([anchors[:1], anchors[1:] & ~anchors[:-1]])
    cells, runs = anchors.sum(axis=(0, -1)), begins.sum(axis=(0, -1))
    return np.where(runs > 0, cells / np.maximum(runs, 1), np.nan)


def centre(weights: Array) -> Array:
    """Centre of mass over positions (last axis); NaN where there is no mass.

    >>> centre(np.array([0.0, 0.5, 0.5]))
    array(1.5)
    """
    mass = np.nan_to_num(weights)
    total = mass.sum(axis=-1)
    return np.where(total > 0, mass @ np.arange(mass.shape[-1]) / np.where(total > 0, total, 1.0), np.nan)


def slope(series: Array, steps: Array | None = None) -> Array:
    """Least-squares change per step (first axis) over the steps that have a value; NaN with fewer than two.

    >>> slope(np.array([1.0, np.nan, 5.0]))
    array(2.)
    """
    there = np.isfinite(series)
    steps = np.arange(len(series)) if steps is None else steps
    step = steps.astype(float).reshape(-1, *[1] * (series.ndim - 1))
    away = np.where(there, step - mean_over(np.where(there, step, np.nan), 0), 0.0)
    spread = (away**2).sum(axis=0)
    rise = (away * np.where(there, series, 0.0)).sum(axis=0)
    return np.where(there.sum(axis=0) > 1, rise / np.where(spread > 0, spread, 1.0), np.nan)


def wasserstein(a: Array) -> Array:
    """1-Wasserstein distance between neighbouring steps' profiles, in positions, on those that exist at both.

    >>> wasserstein(np.array([[1.0, 0, 0], [0, 0, 1.0]]))
    array([2.])
    """
    both = np.isfinite(a[1:]) & np.isfinite(a[:-1])
    before, after = (np.where(both, x, 0.0) for x in (a[:-1], a[1:]))
    cdfs = [np.cumsum(x / np.maximum(x.sum(axis=-1, keepdims=True), 1e-12), axis=-1) for x in (before, after)]
    return np.abs(cdfs[0] - cdfs[1]).sum(axis=-1)


def similarity(a: Array) -> Array:
    """Cosine between neighbouring steps' profiles, on positions that exist at both.

    >>> similarity(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    array([1., 0.])
    """
    before, after = np.nan_to_num(a[:-1]), np.where(np.isfinite(a[:-1]), np.nan_to_num(a[1:]), 0.0)
    dot = np.einsum("...t,...t->...", before, after)
    norms = [np.sqrt(np.einsum("...t,...t->...", x, x)) for x in (before, after)]
    return dot / np.maximum(norms[0] * norms[1], 1e-12)


def tables(measured: xr.Dataset) -> list[Table]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "turnover": mean(part["turnover"].values),
            "dwell, steps": mean(part["dwell"].values),
            "anchors a step": mean(part["n_anchors"].values),
            "strongest position changes": mean(part["top_turnover"].values),
            "shift of the anchors": mean(part["anchor_shift"].values),
            "step-to-step similarity of heads": mean(part["head_similarity"].values),
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    return [as_table("Means over samples, steps and layers", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        layer, most = extreme(part, "turnover")
        found.append(
            f"In {model} ({kind}) {percent(mean(part['turnover'].values))} of the anchors are replaced from one step to "
            f"the next, most at layer {layer} ({percent(most)}); an anchor stays for "
            f"{number(mean(part['dwell'].values), 2)} steps, and the strongest position changes at "
            f"{percent(mean(part['top_turnover'].values))} of the steps."
        )
    for model, kind, part in by_model(measured):
        if kind == "MDM":
            shift = mean(part["anchor_shift"].values)
            way = "right" if shift > 0 else "left"
            found.append(
                f"Over the whole decoding the centre of {model}'s anchors moves {way} by {percent(abs(shift))} of the "
                "sequence."
            )
    return found


REPORT = ReportText(
    title="Drift",
    question="Do the anchors move while the model writes?",
    views={
        "heatmap": (
            "Received attention, steps down, positions across",
            "Dark is much attention, on a square-root scale. Framed or hatched cells are anchors; a vertical streak is an "
            "anchor that stays, a broken one an anchor that moves. Dots show where and when a token is committed.",
        ),
        "numbers": (
            "Movement by layer",
            "Turnover is the share of anchors replaced from one step to the next; dwell time is how long one stays. An ARM "
            "is calm by construction, since each of its steps adds one row to a running mean: compare with care.",
        ),
    },
    tables=tables,
    sentences=sentences,
)
drift = register_finding(
    Finding("drift", paper="§3.1", measure=measure, figure=figure, views=VIEWS, maps=("heatmap",), report=REPORT)
)
claims = drift.claims
