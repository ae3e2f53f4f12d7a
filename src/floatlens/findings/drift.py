"""Drift: whether the anchors move while the model writes.

Section 3.1 of arXiv 2601.07894: the anchors of a masked diffusion model (MDM) move over denoising steps, those of an
autoregressive model (ARM) stay at the first token. Other work (arXiv 2509.24014) finds that attention patterns hardly
change over steps, so the step-to-step similarity of per-head patterns is measured as well: both can be true for different
heads and layers.

Two sets of query rows are measured. *All rows*: received attention, the mean over all queries, as in the paper's
figures. For an ARM it is a running mean to which each step adds one row, so it changes little by construction. *Writing
rows*: the rows whose logits write the tokens of the answer (see `writing`), one per token in both kinds of model. The
claim that compares MDM and ARM uses the writing rows, over equal numbers of tokens; this is its primary variant, chosen
before anything was measured. All rows are reported as well, and so are the writing rows of both models on identical
text (see `same_text`), if traces of replayed answers are given in addition to the models' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.anchors import find_anchors, parse_rule
from floatlens.findings import draw, published, same_text, style
from floatlens.findings.by_model import by_model, extreme, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.numbers import layer_lines
from floatlens.findings.outcome import Outcome, difference, inverted, mean_of, missing, names, rows_of
from floatlens.findings.received import AVERAGE, Layers, choose_layers, few_layers, profile
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, per_sample, pick, require
from floatlens.findings.spelling import number, percent
from floatlens.findings.writing import floating_by_length, renewal_by_length, writing_profile
from floatlens.paper import definitions
from floatlens.stats import NAN, interval_of_mean
from floatlens.trace.summarise import step_cosine
from floatlens.trace.trace import Trace

VIEWS = ("heatmap", "numbers")
COLUMN = 2.1  # inches per model at least
TOKENS_PER_INCH = 9  # tokens that are readable below a column with a colour bar
IDENTICAL = "floating on identical text"
FEWEST_TOKENS = 4  # written tokens that both models need, one per quarter of `renewal`
LABELS = {
    "floating": "floating (all rows)",
    "renewal": "renewal (all rows)",
    "head_similarity": "similarity of heads'\npatterns, step to step (cosine)",
}
TASKS = {
    "world:common": "question",
    "world:fresh": "question",
    "world:long": "free continuation",
    "world:hops": "two questions",
    "world:slots": "slot filling",
    "world:needle": "key-value retrieval",
}


def measure(traces: Traces, *, layer: Layers = None, rule: str = "sigma(3)") -> xr.Dataset:
    """Measure how much the anchors move, per sample and layer. Definitions: `paper.definitions`.

    | variable | dims | description |
    |---|---|---|
    | floating | sample, layer | mean distance of the anchor mass over all pairs of steps |
    | renewal | sample, layer | distance between the first and the last quarter of the steps |
    | without_anchors | sample, layer | share of steps that have no anchor |
    | floating_writing, renewal_writing | sample, layer, tokens | the same for the writing rows, over the first tokens |
    | spread_writing | sample, layer, tokens | effective number of attended positions over those that a writing row sees |
    | n_written | sample | tokens of the answer that were written |
    | text, text_tokens | sample, n_text | texts that were replayed, and their numbers of tokens |
    | floating_text | sample, n_text, n_token | floating of the writing rows over the first tokens of such a text |
    | movement | sample, layer | movement of the centre of received attention, in shares of the answer |
    | shift | sample, layer | movement beyond the null |
    | between_layers, within_layers | sample | distance of the anchor mass of two layers; of one layer at two steps |
    | anchor_mass | sample, position | where the anchors lie, mean over steps and layers |
    | task, length | sample | kind of task (by data set), number of positions |
    | turnover | sample, layer | 1 − Jaccard of the anchors of neighbouring steps, mean over steps |
    | turnover_total | sample, layer | 1 − Jaccard of the anchors of the first and the last step |
    | top_turnover | sample, layer | share of steps at which the strongest position changes |
    | dwell, n_anchors | sample, layer | number of steps that a position stays an anchor; anchors per step |
    | centre | sample, step, layer | centre of mass of received attention |
    | wasserstein | sample, layer | 1-Wasserstein distance between the profiles of neighbouring steps, in positions |
    | top_variance_steps | sample, layer | variance of the strongest position over steps |
    | top_variance_layers | sample | variance of it over layers, mean over steps |
    | head_similarity | sample, layer | cosine of a head's received attention at neighbouring steps, mean over heads |
    """
    rule_id = parse_rule(rule).id
    own, replays = same_text.split_replays(traces)
    answers: list[str] = []

    def measure_one(trace: Trace) -> xr.Dataset:
        answers.append(trace.answer)
        return _measure_one(trace, layer, rule)

    measured = per_sample(own, measure_one, "drift", rule=rule_id)

    def floating_N(trace: Trace) -> Array:
        found = _writing(trace, layer, rule)
        return mean_over(found["floating_writing"].values, 0) if "floating_writing" in found else np.full(0, np.nan)

    return measured.assign(same_text.texts_of(measured, replays, floating_N, answers).data_vars)


def _measure_one(trace: Trace, layer: Layers, rule: str) -> xr.Dataset:
    require(trace, means=["received"], finding="drift")
    profile_SLT = profile(trace, layer)
    a = profile_SLT.values
    layers = range(a.shape[1])
    anchors = find_anchors(a, rule, trace.attention)
    there = np.isfinite(a)
    p_SLT = definitions.anchor_mass(np.nan_to_num(a), anchors)
    top = np.where(there, a, -1.0).argmax(axis=-1).astype(float)
    centres = definitions.centre(np.where(there.all(axis=(0, 1)), a, np.nan))
    by_layer: dict[str, Array] = {
        "floating": np.array([definitions.floating(p_SLT[:, n]) for n in layers]),
        "renewal": np.array([definitions.renewal(p_SLT[:, n]) for n in layers]),
        "without_anchors": np.array([definitions.share_without_anchors(p_SLT[:, n]) for n in layers]),
        "turnover": mean_over(definitions.turnover(anchors, there), 0),
        "top_turnover": mean_over(definitions.turnover(find_anchors(a, "top(1)", trace.attention), there), 0),
        "turnover_total": definitions.turnover(anchors[[0, -1]], there[[0, -1]])[0],
        "dwell": definitions.dwell(anchors),
        "n_anchors": anchors.sum(axis=-1).mean(axis=0),
        "wasserstein": mean_over(neighbour_distance(a), 0),
        "top_variance_steps": top.var(axis=0),
        "head_similarity": _head_similarity(trace, profile_SLT["layer"].values),
        **_shift(trace, a),
    }
    coords = {name: profile_SLT[name] for name in ("layer", "step", "position")}
    found = xr.Dataset({k: ("layer", v) for k, v in by_layer.items()}, coords=coords)
    found["centre"] = (("step", "layer"), centres)
    found["top_variance_layers"] = top.var(axis=1).mean()
    apart = definitions.layer_distance(p_SLT)
    found["between_layers"], found["within_layers"] = apart.between, apart.within
    found["anchor_mass"] = ("position", definitions.anchor_mass(p_SLT.sum(axis=(0, 1)), np.ones(a.shape[-1], bool)))
    found["length"], found["task"] = a.shape[-1], np.array(task_of(trace), dtype=object)
    return found.merge(_writing(trace, layer, rule))


def _shift(trace: Trace, a_SLT: Array) -> dict[str, Array]:
    """Movement of the centre, raw and beyond the null; only for MDMs, whose positions all exist from the start."""
    shift, movement = np.full(a_SLT.shape[1], np.nan), np.full(a_SLT.shape[1], np.nan)
    open_T = trace.data["committed_at"].values >= 0
    ends = a_SLT[[0, -1]]
    if trace.kind == "mdm" and open_T.any() and np.isfinite(ends).all() and len(a_SLT) > 1:
        steps = trace.data["step"].values[[0, -1]]
        masked = open_T & (trace.data["committed_at"].values >= steps[:, None])
        for n in range(a_SLT.shape[1]):
            movement[n] = definitions.movement(ends[:, n], int(open_T.sum()))
            shift[n] = definitions.shift(ends[:, n], masked, int(open_T.sum()))
    return {"shift": shift, "movement": movement}


def _writing(trace: Trace, layer: Layers, rule: str) -> xr.Dataset:
    """Floating, renewal and spread of the writing rows over the first 1, 2, … tokens; empty if not recorded."""
    if "received_writing" not in trace.data:
        return _nothing_written([AVERAGE] if layer == "average" else choose_layers(trace, layer))
    rows_SLT = writing_profile(trace)
    if layer == "average":
        rows_SLT = rows_SLT.mean(axis=1, keepdims=True)
        chosen = [AVERAGE]
    else:
        chosen = choose_layers(trace, layer)
        every = [int(n) for n in trace.data["layer"].values]
        rows_SLT = rows_SLT[:, [every.index(n) for n in chosen]]
    count = len(rows_SLT)
    if not count:
        return _nothing_written(chosen)
    # a writing row sees all positions that exist (earlier ones, or all): its baseline is constant
    anchors = find_anchors(rows_SLT, rule, "bidirectional")
    p_SLT = definitions.anchor_mass(np.nan_to_num(rows_SLT), anchors)
    spread_SL = definitions.effective_positions(rows_SLT) / np.isfinite(rows_SLT).sum(axis=-1)
    numbers: dict[str, list[Array]] = {"floating_writing": [], "renewal_writing": [], "spread_writing": []}
    for n in range(len(chosen)):
        numbers["floating_writing"].append(floating_by_length(p_SLT[:, n]))
        numbers["renewal_writing"].append(renewal_by_length(p_SLT[:, n]))
        numbers["spread_writing"].append(np.cumsum(spread_SL[:, n]) / np.arange(1, count + 1))
    return xr.Dataset(
        {**{name: (("layer", "tokens"), np.array(values)) for name, values in numbers.items()}, "n_written": count},
        coords={"layer": chosen, "tokens": np.arange(1, count + 1)},
    )


def _nothing_written(layers: Sequence[int]) -> xr.Dataset:
    """Empty variables of the writing rows, so that a trace without them can be combined with others."""
    empty = ("layer", "tokens"), np.empty((len(layers), 0))
    names = ("floating_writing", "renewal_writing", "spread_writing")
    return xr.Dataset(
        {**dict.fromkeys(names, empty), "n_written": 0}, coords={"layer": list(layers), "tokens": np.arange(0)}
    )


def task_of(trace: Trace) -> str:
    """The kind of task of a trace's data set; the name of the data set if it is not one of the synthetic world's.

    In a study, the sample id begins with the name of the data set.
    """
    data = str(trace.data.attrs.get("sample_id", "")).rsplit(", ", 2)[0]
    return TASKS.get(data, data)


def _head_similarity(trace: Trace, layers: Array) -> Array:
    """Mean over heads and steps, one layer at a time to avoid copying the trace's largest variable."""
    chosen = trace.data["layer"].values if AVERAGE in layers else layers
    found = []
    for layer in chosen:
        if "received" in trace.data:
            one_SHT = trace.data["received"].sel(layer=layer).transpose("step", "head", "position").values
            cosine_SH = step_cosine(one_SHT)
        else:
            cosine_SH = trace.data["received_cos"].sel(layer=layer).transpose("step", "head").values[1:]
        found.append(float(mean_over(cosine_SH, (0, 1))) if len(cosine_SH) else float("nan"))
    return np.array([np.mean(found)]) if AVERAGE in layers else np.array(found)


def figure(
    traces: Traces,
    *,
    layer: Layers = None,
    rule: str = "sigma(3)",
    sample: int | str | None = None,
    positions: slice | None = None,
    view: str = "heatmap",
    paper: bool = False,
    backend: str = "matplotlib",
) -> Figure | pd.DataFrame:
    """Draw received attention, steps × positions, with anchors and commits (`heatmap`), or numbers by layer (`numbers`).

    One column per model, one row per layer: the given layers, "average", or by default the first, middle and last.
    `positions` selects a part of the sequence. With `backend="none"`, returns the data of the figure, one row per cell.
    `paper` adds the published maps of LLaDA, layers 0 and 31, to the heatmap.
    """
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    if view == "numbers":
        measured = traces if is_measured(traces, "drift") else measure(traces, layer=layer, rule=rule)
        return layer_lines(measured, LABELS, backend=backend)
    panels = []
    for trace in pick(traces, sample):
        require(trace, means=["received"], finding="drift")
        found = profile(trace, few_layers(trace) if layer is None else layer)
        anchors = find_anchors(found.values, rule, trace.attention)
        for place, index in enumerate(found["layer"].values):
            panels.append((trace, int(index), found.values[:, place], anchors[:, place]))
    if paper:
        trace = published.temporal_trace()
        for place, index in enumerate(trace.data["layer"].values):
            a_ST = trace.data["received"].values[:, place, 0]
            panels.append((trace, int(index), a_ST, published.published_anchors(int(index))))
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
        width = max(style.WIDTH, COLUMN * len(models))
        figure = style.new_figure(0.9 + 1.35 * rows, width)
        grid = figure.subplots(rows, len(models), squeeze=False)
        used: dict[str, int] = dict.fromkeys(models, 0)
        used_rows = {model: sum(trace.model == model for trace, *_ in panels) for model in models}
        for trace, layer, a_ST, anchors_ST in panels:
            row, column = used[trace.model], models.index(trace.model)
            used[trace.model] += 1
            readable = int(TOKENS_PER_INCH * width / len(models))
            last = row == used_rows[trace.model] - 1
            _panel(grid[row, column], trace, layer, a_ST, anchors_ST, positions, readable if last else 0, figure=figure)
            if row == 0:
                kind = trace.kind.upper()
                grid[row, column].set_title(f"{style.short(trace.model)}\n{kind}", pad=14, weight="bold")
            if column and grid[row, column].get_ylabel() == grid[row, 0].get_ylabel():
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
    readable: int,
    figure: Figure,
) -> None:
    """Draw one map. `readable` is the number of tokens that fit the axis, 0 for a panel without labels."""
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
    if readable:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=min(8, readable // 4), integer=True))
        draw.token_axis(axes, tokens, first=start, most=readable)
        axes.set_xlabel("position")
    else:
        axes.set_xticklabels([])
    figure.colorbar(mesh, ax=axes, pad=0.01, aspect=12).ax.tick_params(labelsize=6)


def over_equal_tokens(measured: xr.Dataset, name: str, mdm: str | None, arm: str | None) -> Array:
    """A number of the writing rows over equal numbers of tokens in both models, mean over layers (sample).

    The number of tokens of a question is that of the shorter answer; NaN if it is below `FEWEST_TOKENS`.
    """
    values = np.full(measured.sizes["sample"], np.nan)
    if name not in measured:
        return values
    written, ids = measured["n_written"].values, measured["sample_id"].values
    sides = {kind: rows_of(measured, kind, model) for kind, model in (("mdm", mdm), ("arm", arm))}
    fewest = {
        kind: {ids[r]: min(int(written[q]) for q in rows if ids[q] == ids[r]) for r in rows}
        for kind, rows in sides.items()
    }
    for rows, others in ((sides["mdm"], fewest["arm"]), (sides["arm"], fewest["mdm"])):
        for row in rows:
            tokens = min(int(written[row]), others.get(ids[row], 0))
            if tokens >= FEWEST_TOKENS:
                values[row] = mean_over(measured[name].sel(tokens=tokens).values[row], 0)
    return values


@register_claim("drift.moves")
def moves(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    found = difference(
        measured,
        over_equal_tokens(measured, "floating_writing", mdm, arm),
        mdm=mdm,
        arm=arm,
        beside={
            "renewal of the writing rows": over_equal_tokens(measured, "renewal_writing", mdm, arm),
            "floating of all rows": mean_over(measured["floating"].values, 1),
            "renewal of all rows": mean_over(measured["renewal"].values, 1),
        },
    )
    same = same_text.difference_on_same_text(measured, FEWEST_TOKENS, mdm, arm)
    if same is None:
        return found
    numbers = {IDENTICAL: [same.value, *same.interval], "questions on identical text": same.n}
    return replace(found, details={**found.details, **numbers})


@register_claim("drift.renewal")
def renewal(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return mean_of(
        measured,
        mean_over(measured["renewal"].values, 1),
        kind="mdm",
        model=mdm,
        beside={
            "floating of all rows": mean_over(measured["floating"].values, 1),
            "turnover per step": mean_over(measured["turnover"].values, 1),
            "share of steps without anchors": mean_over(measured["without_anchors"].values, 1),
        },
    )


@register_claim("drift.shift")
def shifts(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return mean_of(
        measured,
        mean_over(measured["shift"].values, 1),
        kind="mdm",
        model=mdm,
        beside={"movement without the null": mean_over(measured["movement"].values, 1)},
    )


@register_claim("drift.layers")
def layers_differ(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    between, within = measured["between_layers"].values, measured["within_layers"].values
    return mean_of(
        measured, between - within, kind="mdm", model=mdm, beside={"between layers": between, "within a layer": within}
    )


@register_claim("drift.spread")
def spread_wider(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    return difference(measured, over_equal_tokens(measured, "spread_writing", mdm, arm), mdm=mdm, arm=arm)


@register_claim("drift.task")
def task_matters(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    rows = rows_of(measured, "mdm", mdm)
    models = names(measured, rows)
    if not len(rows):
        return missing("mdm")
    mass_NT, tasks = np.nan_to_num(measured["anchor_mass"].values[rows]), measured["task"].values[rows].astype(str)
    found = length_matched_tasks(mass_NT, tasks, measured["length"].values[rows])
    if found is None:
        return Outcome(
            NAN,
            (NAN, NAN),
            0,
            models,
            reason=f"no two tasks have prompts of equal length; tasks: {', '.join(sorted(set(tasks)))}",
        )
    value, interval = interval_of_mean(found.pseudo_values)
    details = {"between tasks": found.between, "within a task": found.within, "p of a permutation": found.p}
    reason, test = f"p = {found.p:.3f} by permutation", inverted(interval_of_mean, found.pseudo_values)
    return Outcome(value, interval, len(found.pseudo_values), models, details, reason, test=test)


class LengthMatched(NamedTuple):
    """Distances between and within tasks on samples of equal length; `pseudo_values` are those of the jackknife."""

    between: float
    within: float
    pseudo_values: Array
    p: float


def length_matched_tasks(
    mass_NT: Array, tasks_N: Array, lengths_N: Array, *, resamples: int = 1999, seed: int = 0
) -> LengthMatched | None:
    """Between-task minus within-task distance over pairs of samples of equal length; None without both kinds of pairs.

    Pairs share samples, so the interval uses the jackknife's pseudo-values, one per sample. The permutation shuffles
    tasks among samples of equal length.

    >>> mass = np.tile(np.eye(2), (3, 1))
    >>> found = length_matched_tasks(mass, np.array(["a", "b"] * 3), np.full(6, 2))
    >>> found.between, found.within, found.pseudo_values.round(6).tolist()
    (1.0, 0.0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """
    there = definitions.has_anchors(mass_NT)
    mass, tasks, lengths = mass_NT[there], tasks_N[there], lengths_N[there]
    equal_NN = (lengths[:, None] == lengths) & ~np.eye(len(mass), dtype=bool)
    apart_NN = np.array([np.abs(mass - row).sum(axis=-1) / 2 for row in mass]).reshape(len(mass), len(mass))

    def totals(labels: Array) -> tuple[Array, Array, Array, Array]:
        same = labels[:, None] == labels
        pairs = (equal_NN & ~same, equal_NN & same)
        sums = [np.where(pair, apart_NN, 0.0).sum(axis=1) for pair in pairs]
        return sums[0], pairs[0].sum(axis=1), sums[1], pairs[1].sum(axis=1)

    between, n_between, within, n_within = totals(tasks)
    used = np.flatnonzero(n_between + n_within > 0)
    if not n_between.sum() or not n_within.sum() or len(used) < 3:
        return None
    value = between.sum() / n_between.sum() - within.sum() / n_within.sum()
    pseudo = []
    for i in used:  # a pair is counted once in each of its two samples
        rest = [x.sum() - 2 * x[i] for x in (between, n_between, within, n_within)]
        without = rest[0] / rest[1] - rest[2] / rest[3] if rest[1] and rest[3] else np.nan
        pseudo.append(len(used) * value - (len(used) - 1) * without)
    rng, beyond = np.random.default_rng(seed), 0
    for _ in range(resamples):
        shuffled = tasks.copy()
        for length in np.unique(lengths):
            group = np.flatnonzero(lengths == length)
            shuffled[group] = tasks[rng.permutation(group)]
        b, n_b, w, n_w = (x.sum() for x in totals(shuffled))
        beyond += bool(n_b and n_w and b / n_b - w / n_w >= value - 1e-12)
    return LengthMatched(
        float(between.sum() / n_between.sum()),
        float(within.sum() / n_within.sum()),
        np.array(pseudo),
        (1 + beyond) / (1 + resamples),
    )


def neighbour_distance(a: Array) -> Array:
    """1-Wasserstein distance between neighbouring steps' profiles, in positions, on those that exist at both.

    >>> neighbour_distance(np.array([[1.0, 0, 0], [0, 0, 1.0]]))
    array([2.])
    """
    both = np.isfinite(a[1:]) & np.isfinite(a[:-1])
    before, after = (np.where(both, x, 0.0) for x in (a[:-1], a[1:]))
    before, after = (x / np.maximum(x.sum(axis=-1, keepdims=True), 1e-12) for x in (before, after))
    return definitions.wasserstein(before, after)


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = [
        {
            "model": model,
            "kind": kind,
            "floating": mean(part["floating"].values),
            "renewal": mean(part["renewal"].values),
            "floating, writing rows": _last(part, "floating_writing"),
            "shift beyond the null": mean(part["shift"].values),
            "turnover per step": mean(part["turnover"].values),
            "dwell, steps": mean(part["dwell"].values),
            "anchors per step": mean(part["n_anchors"].values),
            "steps without anchors": mean(part["without_anchors"].values),
            "samples": part.sizes["sample"],
        }
        for model, kind, part in by_model(measured)
    ]
    made = [as_table("Means over samples and layers", pd.DataFrame(rows), number)]
    variants = _variants(measured)
    return [*made, as_table("MDM against ARM, each way of comparing them", variants, number)] if len(variants) else made


def _variants(measured: xr.Dataset) -> pd.DataFrame:
    """The variants of the claim MDM against ARM, the primary one first; one row per pair of models and variant."""
    claim = next(claim for claim in drift.registered_claims() if claim.id == "drift.moves")
    rows = []
    for verdict in claim.verdicts(measured):
        if len(verdict.models) < 2:
            continue
        several = {"floating of the writing rows (primary)": [verdict.value, *verdict.interval], **verdict.details}
        for name, numbers in several.items():
            if isinstance(numbers, list):
                n = verdict.details["questions on identical text"] if name == IDENTICAL else verdict.n
                value, low, high = (NAN if x is None else x for x in numbers)
                about = {"models": ", ".join(verdict.models), "variant": name, "MDM − ARM": value}
                rows.append({**about, "low": low, "high": high, "questions": n})
    return pd.DataFrame(rows)


def _last(part: xr.Dataset, name: str) -> float:
    """Mean over samples and layers of a number of the writing rows over all tokens that were written."""
    if name not in part:
        return NAN
    written = part["n_written"].values.astype(int)
    values = [mean_over(part[name].sel(tokens=n).values[row], 0) for row, n in enumerate(written) if n > 1]
    return mean(np.array(values)) if values else NAN


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        layer, most = extreme(part, "floating")
        found.append(
            f"In {model} ({kind}) the anchors of two steps differ by {percent(mean(part['floating'].values))} of "
            f"their mass on average, most at layer {layer} ({percent(most)}); between the first and the last quarter "
            f"of the steps {percent(mean(part['renewal'].values))} of it moves. An anchor stays for "
            f"{number(mean(part['dwell'].values), 2)} steps."
        )
    for model, kind, part in by_model(measured):
        shift = mean(part["shift"].values)
        if kind == "MDM" and shift == shift:
            way = "right" if shift > 0 else "left"
            found.append(
                f"Beyond the order in which tokens are revealed, the centre of {model}'s attention moves {way} by "
                f"{percent(abs(shift))} of the answer."
            )
    return found


REPORT = ReportText(
    title="Drift",
    question="Do the anchors move while the model writes?",
    views={
        "heatmap": (
            "Received attention by step (rows) and position (columns)",
            "Dark cells receive much attention, on a square-root scale. Framed or hatched cells are anchors; a vertical "
            "line is an anchor that stays, a broken one an anchor that moves. Dots show where and when a token is "
            "committed.",
        ),
        "numbers": (
            "Movement by layer",
            "Floating is the mean distance of the anchors of two steps: 0 for a fixed sink, about 0.5 for one move "
            "halfway. Renewal compares the first and the last quarter of the steps. The received attention of an ARM "
            "is a running mean, which changes little by construction; the claim that compares MDM and ARM therefore uses "
            "the writing rows.",
        ),
    },
    tables=tables,
    sentences=sentences,
)
drift = register_finding(
    Finding("drift", paper="§3.1", measure=measure, figure=figure, views=VIEWS, maps=("heatmap",), report=REPORT)
)
claims = drift.claims
