"""Drift: whether the anchors move while the model writes.

Section 3.1 of arXiv 2601.07894: the anchors of a masked diffusion model (MDM) move over denoising steps, those of an
autoregressive model (ARM) stay at the first token. Other work (arXiv 2509.24014) finds that attention patterns hardly
change over steps, so the step-to-step similarity of per-head patterns is measured as well: both can be true for different
heads and layers.

Two sets of query rows are measured. *All rows*: received attention, the mean over all queries, as in the paper's
figures. For an ARM it is a running mean to which each step adds one row, so it changes little by construction. *Writing
rows*: the rows whose logits write the tokens of the answer (see `received`), one per token in both kinds of model. The
claim that compares MDM and ARM uses the writing rows, over equal numbers of tokens; this is its primary variant, chosen
before anything was measured. All rows are reported as well, and so are the writing rows of both models on identical
text (`on_same_text`), if traces of replayed answers are given in addition to the models' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from floatlens.anchors import find_anchors, parse_rule
from floatlens.findings import definitions, draw, published, style
from floatlens.findings.finding import CLAIMS, Finding, ReportTable, as_table, register_claim, register_finding
from floatlens.findings.received import AVERAGE, Layers, choose_layers, few_layers, profile, writing_profile
from floatlens.findings.samples import (
    Array,
    Traces,
    as_traces,
    by_model,
    mean,
    mean_over,
    over_layers,
    pick,
    question_of,
    require,
)
from floatlens.findings.spelling import number, percent
from floatlens.findings.verdict import Outcome, difference, mean_of, missing, names, rows_of
from floatlens.stats import NAN, NO_INTERVAL, interval_of_mean
from floatlens.store.runs import RunTraces
from floatlens.trace.summarise import step_cosine
from floatlens.trace.trace import Trace

COLUMN = 2.1  # inches per model at least
TOKENS_PER_INCH = 9  # tokens that are readable below a column with a colour bar
IDENTICAL = "floating on identical text"
FEWEST_TOKENS = 4  # written tokens that both models need, one per quarter of `renewal`
REPLAY = "replay"  # decode.replay.NAME, which cannot be imported without torch
TASKS = {
    "world:common": "question",
    "world:fresh": "question",
    "world:long": "free continuation",
    "world:hops": "two questions",
    "world:slots": "slot filling",
    "world:needle": "key-value retrieval",
}


class Drift(Finding):
    name = "drift"
    views = ("heatmap", "numbers")
    maps = ("heatmap",)
    needs_means = ("received",)

    def measure_one(self, trace: Trace, *, layer: Layers = None, rule: str = "sigma(3)") -> xr.Dataset:
        """Measure how much the anchors move, per sample and layer. Definitions: `definitions`."""
        profile_SLT = profile(trace, layer)
        a, layers = profile_SLT.values, profile_SLT["layer"].values
        anchors, there = find_anchors(a, rule, trace.attention_kind), np.isfinite(a)
        p_SLT = definitions.anchor_mass(np.nan_to_num(a), anchors)
        by_layer: dict[str, Any] = {
            "floating": [definitions.floating(p_SLT[:, n]) for n in range(len(layers))],
            "renewal": [definitions.renewal(p_SLT[:, n]) for n in range(len(layers))],
            "without_anchors": [definitions.share_without_anchors(p_SLT[:, n]) for n in range(len(layers))],
            "turnover": mean_over(definitions.turnover(anchors, there), 0),
            "dwell": definitions.dwell(anchors),
            "n_anchors": anchors.sum(axis=-1).mean(axis=0),
            "head_similarity": _head_similarity(trace, layers),
            **_shift(trace, a),
        }
        between, within = definitions.layer_distance(p_SLT)
        found = xr.Dataset(
            {
                **{name: ("layer", numbers) for name, numbers in by_layer.items()},
                "between_layers": between,
                "within_layers": within,
                "anchor_mass": (
                    "position",
                    definitions.anchor_mass(p_SLT.sum(axis=(0, 1)), np.ones(a.shape[-1], bool)),
                ),
                "length": a.shape[-1],
                "task": np.array(task_of(trace), dtype=object),
                "answer": np.array(trace.answer, dtype=object),
            },
            coords={"layer": layers, "position": profile_SLT["position"]},
        )
        return found.merge(_writing(trace, layer, rule))

    def measure_all(self, traces: Traces, **options: Any) -> xr.Dataset:
        """Measure the models' own traces; replays of their answers add the texts on which models are compared."""
        own, replays = split_replays(traces)
        measured = super().measure_all(own, **options)

        def floating_N(trace: Trace) -> Array:
            return mean_over(_writing(trace, **options)["floating_writing"].values, 0)

        return measured.assign(_texts(measured, replays, floating_N).data_vars).drop_vars("answer")

    def draw_heatmap(
        self,
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

        Layers are those given, "average", or by default the first, middle and last. `positions` selects a part of the
        sequence. `paper` adds the published maps of LLaDA, layers 0 and 31.
        """
        panels = []
        for trace in pick(traces, sample):
            require(trace, means=self.needs_means, finding=self.name)
            found = profile(trace, few_layers(trace) if layer is None else layer)
            anchors = find_anchors(found.values, rule, trace.attention_kind)
            panels += [(trace, int(n), found.values[:, i], anchors[:, i]) for i, n in enumerate(found["layer"].values)]
        if paper:
            trace = published.temporal_trace()
            for place, index in enumerate(map(int, trace.data["layer"].values)):
                a_ST = trace.data["received"].values[:, place, 0]
                panels.append((trace, index, a_ST, published.published_anchors(index)))
        if backend == "none":
            return pd.concat([_cells(*panel, positions) for panel in panels], ignore_index=True)
        return _draw(panels, rule, positions)

    def row(self, part: xr.Dataset) -> dict[str, Any]:
        written = part["n_written"].values.astype(int)
        last = [mean(part["floating_writing"].sel(tokens=n).values[row]) for row, n in enumerate(written) if n > 1]
        return {
            "floating": mean(part["floating"].values),
            "renewal": mean(part["renewal"].values),
            "floating, writing rows": mean(np.array(last)),
            "shift beyond the null": mean(part["shift"].values),
            "turnover per step": mean(part["turnover"].values),
            "dwell, steps": mean(part["dwell"].values),
            "anchors per step": mean(part["n_anchors"].values),
            "steps without anchors": mean(part["without_anchors"].values),
        }

    def tables(self, measured: xr.Dataset) -> list[ReportTable]:
        variants = _variants(measured)
        title = "MDM against ARM, each way of comparing them"
        return [*super().tables(measured), *([as_table(title, variants)] if variants else [])]

    def sentence(self, model: str, part: xr.Dataset) -> str:
        by_layer = mean_over(part["floating"].values, 0)
        layer, most = -1, NAN
        if np.isfinite(by_layer).any():
            layer, most = int(part["layer"].values[np.nanargmax(by_layer)]), float(np.nanmax(by_layer))
        return (
            f"In {model} the anchors of two steps differ by {percent(mean(part['floating'].values))} of their mass on "
            f"average, most at layer {layer} ({percent(most)}); between the first and the last quarter of the steps "
            f"{percent(mean(part['renewal'].values))} of it moves. An anchor stays for "
            f"{number(mean(part['dwell'].values), 2)} steps."
        )

    def sentences(self, measured: xr.Dataset) -> list[str]:
        found = super().sentences(measured)
        for model, kind, part in by_model(measured):
            shift = mean(part["shift"].values)
            if kind == "MDM" and np.isfinite(shift):
                found.append(
                    f"Beyond the order in which tokens are revealed, the centre of {model}'s attention moves "
                    f"{'right' if shift > 0 else 'left'} by {percent(abs(shift))} of the answer."
                )
        return found


def task_of(trace: Trace) -> str:
    """The kind of task of a trace's data set; the name of the data set if it is not one of the synthetic world's.

    In a study, the sample id begins with the name of the data set.
    """
    data = str(trace.data.attrs.get("sample_id", "")).rsplit(", ", 2)[0]
    return TASKS.get(data, data)


def _shift(trace: Trace, a_SLT: Array) -> dict[str, Array]:
    """Movement of the centre, raw and beyond the null; only for MDMs, whose positions all exist from the start."""
    shift, movement = np.full(a_SLT.shape[1], np.nan), np.full(a_SLT.shape[1], np.nan)
    committed = trace.data["committed_at"].values
    open_T, ends = committed >= 0, a_SLT[[0, -1]]
    if trace.kind == "mdm" and open_T.any() and np.isfinite(ends).all() and len(a_SLT) > 1:
        masked = open_T & (committed >= trace.data["step"].values[[0, -1], None])
        for n in range(a_SLT.shape[1]):
            movement[n] = definitions.movement(ends[:, n], int(open_T.sum()))
            shift[n] = definitions.shift(ends[:, n], masked, int(open_T.sum()))
    return {"shift": shift, "movement": movement}


def _head_similarity(trace: Trace, layers: Array) -> Array:
    """Mean over heads and steps, one layer at a time to avoid copying the trace's largest variable."""
    found = []
    for layer in trace.data["layer"].values if AVERAGE in layers else layers:
        if "received" in trace.data:
            one_SHT = trace.data["received"].sel(layer=layer).transpose("step", "head", "position").values
            cosine_SH = step_cosine(one_SHT)
        else:
            cosine_SH = trace.data["received_cos"].sel(layer=layer).transpose("step", "head").values[1:]
        found.append(float(mean_over(cosine_SH, (0, 1))) if len(cosine_SH) else NAN)
    return np.array([np.mean(found)]) if AVERAGE in layers else np.array(found)


# The writing rows


def _writing(trace: Trace, layer: Layers, rule: str) -> xr.Dataset:
    """Floating, renewal and spread of the writing rows over the first 1, 2, … tokens; empty if not recorded."""
    chosen = [AVERAGE] if layer == "average" else choose_layers(trace, layer)
    rows_SLT = writing_profile(trace) if "received_writing" in trace.data else np.empty((0, 0, 0))
    numbers = np.empty((3, len(chosen), len(rows_SLT)))
    if len(rows_SLT):
        every = [int(n) for n in trace.data["layer"].values]
        average = layer == "average"
        rows_SLT = rows_SLT.mean(axis=1, keepdims=True) if average else rows_SLT[:, [every.index(n) for n in chosen]]
        # a writing row sees all positions that exist (earlier ones, or all): its baseline is constant
        p_SLT = definitions.anchor_mass(np.nan_to_num(rows_SLT), find_anchors(rows_SLT, rule, "bidirectional"))
        spread_SL = definitions.effective_positions(rows_SLT) / np.isfinite(rows_SLT).sum(axis=-1)
        for n in range(len(chosen)):
            numbers[0, n] = definitions.floating_by_length(p_SLT[:, n])
            numbers[1, n] = definitions.renewal_by_length(p_SLT[:, n])
            numbers[2, n] = np.cumsum(spread_SL[:, n]) / np.arange(1, len(rows_SLT) + 1)
    by_name = zip(("floating_writing", "renewal_writing", "spread_writing"), numbers, strict=True)
    return xr.Dataset(
        {**{name: (("layer", "tokens"), values) for name, values in by_name}, "n_written": len(rows_SLT)},
        coords={"layer": chosen, "tokens": np.arange(1, len(rows_SLT) + 1)},
    )


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


# Identical text: both models write the same answers, replayed from left to right, so that only their attention differs


def split_replays(traces: Traces) -> tuple[Traces, Iterable[Trace]]:
    """Separate models' own traces from replays; if there are only replays, they are treated as own traces."""
    if isinstance(traces, RunTraces):
        return traces, traces.replays()
    every = as_traces(traces)
    replays = [trace for trace in every if trace.data.attrs.get("sampler") == REPLAY]
    if len(replays) in (0, len(every)):
        return every, []
    return [trace for trace in every if trace.data.attrs.get("sampler") != REPLAY], replays


def _texts(measured: xr.Dataset, replays: Iterable[Trace], floating_N: Callable[[Trace], Array]) -> xr.Dataset:
    """Floating over the first 1, 2, … tokens of each text that was replayed for a sample.

    An autoregressive model's own answer needs no replay: its trace is one already. Spaces are made single, because
    tokenizers add different ones.
    """
    found: list[list[tuple[str, Array]]] = [[] for _ in measured["sample"]]
    rows: dict[tuple[str, str], list[int]] = {}
    for row, (model, sample) in enumerate(zip(measured["model"].values, measured["sample_id"].values, strict=True)):
        rows.setdefault((str(model), question_of(str(sample))), []).append(row)
    for trace in replays:
        question = question_of(str(trace.data.attrs.get("sample_id", "")))
        for row in rows.get((trace.model, question), ()):
            found[row].append((" ".join(trace.answer.split()), floating_N(trace)))
    if not any(found):
        return xr.Dataset()
    for row, answer in enumerate(measured["answer"].values):
        written = int(measured["n_written"].values[row])
        if str(measured["model_kind"].values[row]) == "arm" and written:
            own = mean_over(measured["floating_writing"].values[row, :, :written], 0)
            found[row].append((" ".join(answer.split()), own))
    shape = (len(found), max(len(texts) for texts in found))
    longest = max(len(numbers) for texts in found for _, numbers in texts)
    text, count, floating = np.full(shape, "", dtype=object), np.zeros(shape, int), np.full((*shape, longest), np.nan)
    for row, texts in enumerate(found):
        for index, (answer, numbers) in enumerate(texts):
            text[row, index], count[row, index] = answer, len(numbers)
            floating[row, index, : len(numbers)] = numbers
    return xr.Dataset(
        {
            "text": (("sample", "n_text"), text),
            "text_tokens": (("sample", "n_text"), count),
            "floating_text": (("sample", "n_text", "n_token"), floating),
        }
    )


def on_same_text(measured: xr.Dataset, mdm: str | None, arm: str | None) -> dict[str, Any]:
    """Floating on identical text, MDM minus ARM, question by question; empty if no text was replayed."""
    if "floating_text" not in measured:
        return {}
    ours, theirs = (_texts_of(measured, rows_of(measured, kind, model)) for kind, model in (("mdm", mdm), ("arm", arm)))
    values = []
    for question, texts in ours.items():
        pairs = [
            (a[min(len(a), len(b)) - 1], b[min(len(a), len(b)) - 1])
            for text, several in texts.items()
            for a in several
            for b in theirs.get(question, {}).get(text, ())
            if min(len(a), len(b)) >= FEWEST_TOKENS
        ]
        if pairs:
            values.append(definitions.same_text_difference(*np.array(pairs).T))
    there = [value for value in values if np.isfinite(value)]
    value, interval = interval_of_mean(there)
    return {IDENTICAL: [value, *interval], "questions on identical text": len(there)}


def _texts_of(measured: xr.Dataset, rows: Array) -> dict[str, dict[str, list[Array]]]:
    """The numbers of each text, one per token, by question and text."""
    found: dict[str, dict[str, list[Array]]] = {}
    for row in rows:
        texts = found.setdefault(question_of(str(measured["sample_id"].values[row])), {})
        for index, count in enumerate(measured["text_tokens"].values[row]):
            if count:
                text = str(measured["text"].values[row, index])
                texts.setdefault(text, []).append(measured["floating_text"].values[row, index, : int(count)])
    return found


# Claims


@register_claim("drift.moves")
def moves(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Outcome:
    floating, renewal = (
        over_equal_tokens(measured, name, mdm, arm) for name in ("floating_writing", "renewal_writing")
    )
    beside = {
        "renewal of the writing rows": renewal,
        "floating of all rows": over_layers(measured, "floating"),
        "renewal of all rows": over_layers(measured, "renewal"),
    }
    found = difference(measured, floating, mdm=mdm, arm=arm, beside=beside)
    return replace(found, details={**found.details, **on_same_text(measured, mdm, arm)})


@register_claim("drift.renewal")
def renewal(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {
        "floating of all rows": over_layers(measured, "floating"),
        "turnover per step": over_layers(measured, "turnover"),
        "share of steps without anchors": over_layers(measured, "without_anchors"),
    }
    return mean_of(measured, over_layers(measured, "renewal"), kind="mdm", model=mdm, beside=beside)


@register_claim("drift.right")
def moves_right(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    return mean_of(measured, over_layers(measured, "movement"), kind="mdm", model=mdm)


@register_claim("drift.shift")
def shifts(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    beside = {"movement without the null": over_layers(measured, "movement")}
    return mean_of(measured, over_layers(measured, "shift"), kind="mdm", model=mdm, beside=beside)


@register_claim("drift.layers")
def layers_differ(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    between, within = measured["between_layers"].values, measured["within_layers"].values
    beside = {"between layers": between, "within a layer": within}
    return mean_of(measured, between - within, kind="mdm", model=mdm, beside=beside)


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
    found = definitions.length_matched_tasks(mass_NT, tasks, measured["length"].values[rows])
    if found is None:
        reason = f"no two tasks have prompts of equal length; tasks: {', '.join(sorted(set(tasks)))}"
        return Outcome(NAN, NO_INTERVAL, 0, models, reason=reason)
    value, interval = interval_of_mean(found.pseudo_values)
    details = {"between tasks": found.between, "within a task": found.within, "p of a permutation": found.p}
    reason = f"p = {found.p:.3f} by permutation"
    return Outcome(value, interval, len(found.pseudo_values), models, details, reason)


def _variants(measured: xr.Dataset) -> list[dict[str, Any]]:
    """The variants of the claim MDM against ARM, the primary one first; one row per pair of models and variant."""
    rows = []
    for verdict in CLAIMS["drift.moves"].verdicts(measured):
        if len(verdict.models) < 2:
            continue
        several = {"floating of the writing rows (primary)": [verdict.value, *verdict.interval], **verdict.details}
        for name, numbers in several.items():
            if isinstance(numbers, list):
                n = verdict.details["questions on identical text"] if name == IDENTICAL else verdict.n
                about = {"models": ", ".join(verdict.models), "variant": name}
                rows.append({**about, **dict(zip(("MDM − ARM", "low", "high"), numbers, strict=True)), "questions": n})
    return rows


# The map


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
            "token": [tokens[p] for s in steps for tokens in [trace.texts(int(s))] for p in shown],
            "received": a_ST[:, shown].ravel(),
            "anchor": anchors_ST[:, shown].ravel(),
            "committed_at": np.tile(trace.data["committed_at"].values[shown], len(steps)),
        }
    )


def _draw(panels: list[tuple[Trace, int, Array, Array]], rule: str, positions: slice | None) -> Figure:
    by_model = {trace.model: [panel for panel in panels if panel[0].model == trace.model] for trace, *_ in panels}
    rows = max(map(len, by_model.values()))
    with style.sheet():
        width = max(style.WIDTH, COLUMN * len(by_model))
        figure = style.new_figure(0.9 + 1.35 * rows, width)
        grid = figure.subplots(rows, len(by_model), squeeze=False)
        for column, several in zip(grid.T, by_model.values(), strict=True):
            for row, axes in enumerate(column):
                if row >= len(several):
                    axes.set_axis_off()
                    continue
                last = row == len(several) - 1
                mesh = _panel(
                    axes, *several[row], positions, int(TOKENS_PER_INCH * width / len(by_model)) if last else 0
                )
                figure.colorbar(mesh, ax=axes, pad=0.01, aspect=12).ax.tick_params(labelsize=6)
                if axes is not grid[row, 0] and axes.get_ylabel() == grid[row, 0].get_ylabel():
                    axes.set_ylabel("")
            trace = several[0][0]
            column[0].set_title(f"{style.short(trace.model)}\n{trace.kind.upper()}", pad=14, weight="bold")
        style.caption(
            figure,
            f"Received attention (mean over heads and queries); hatched or framed: anchors by {parse_rule(rule).id}; "
            "dots: where and when a token is committed; * gold document.",
        )
    return figure


def _panel(
    axes: Axes, trace: Trace, layer: int, a_ST: Array, anchors_ST: Array, positions: slice | None, readable: int
) -> AxesImage:
    """Draw one map. `readable` is the number of tokens that fit the axis, 0 for a panel without labels."""
    start, stop, _ = (positions or slice(None)).indices(a_ST.shape[1])
    shown, steps = slice(start, stop), trace.data["step"].values
    values, tokens = a_ST[:, shown], trace.texts()[shown]
    mesh = draw.attention_map(axes, values)
    draw.hatch_anchors(axes, anchors_ST[:, shown])
    draw.name_rows(axes, steps.tolist())
    draw.commit_front(axes, trace.data["committed_at"].values[shown], steps)
    draw.mark_regions(axes, trace.regions, shown, trace.gold)
    draw.name_on_hover(axes, values, tokens, start)
    axes.set_ylabel(("mean of layers" if layer == AVERAGE else f"layer {layer}") + "\nstep")
    if readable:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=min(8, readable // 4), integer=True))
        draw.token_axis(axes, tokens, first=start, most=readable)
        axes.set_xlabel("position")
    else:
        axes.set_xticklabels([])
    return mesh


drift = register_finding(Drift())
measure, figure, claims = drift.measure, drift.figure, drift.claims
