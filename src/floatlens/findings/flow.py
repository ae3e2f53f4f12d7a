"""Flow: which parts of the prompt the answer attends to, and whether it follows the gold document.

Region flow of arXiv 2601.07894. The claim uses the writing rows (see `writing`): their attention to each document
per token of the document, because a sum over tokens favours long documents. The rollout (Abnar and Zuidema 2020)
multiplies the regions' attention, (A + I)/2 with the residual stream, through the layers. Over many layers it converges
to a vector that is the same for every source, and no longer depends on the answer. It therefore stops at the last layer
at which its rows still differ, and that layer is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.errors import FloatLensError
from floatlens.findings import draw, published, style
from floatlens.findings.by_model import by_model, mean
from floatlens.findings.finding import Finding, ReportTable, ReportText, as_table, register_claim, register_finding
from floatlens.findings.outcome import Outcome, mean_of, rows_of
from floatlens.findings.samples import Array, Traces, is_measured, mean_over, models_of, per_sample, require, spread
from floatlens.findings.spelling import number, percent
from floatlens.findings.writing import writing_profile
from floatlens.paper import definitions
from floatlens.trace.trace import Trace

VIEWS = ("rollout", "layers", "steps")
GOLD = "#007a7a"
TARGETS = ("gold document", "another document", "query", "bos", "answer")


STOP = 0.1  # total variation; below it, the rollout no longer depends on the source


def measure(traces: Traces, *, step: int | None = None, residual: bool = True, stop: float = STOP) -> xr.Dataset:
    """Measure how attention flows between regions, as a mean over steps or at one step.

    The rollout stops at the last layer at which two of its rows differ by `stop` in total variation; 0 rolls out all
    layers.

    | variable | dims | description |
    |---|---|---|
    | writing | sample, layer, region_to | attention of the writing rows to each region, mean over the answer's tokens |
    | writing_per_token | sample, layer, region_to | the same per token of the region |
    | rollout | sample, region, region_to | flow through the layers; rows sum to one |
    | rollout_layer | sample | last layer of the rollout, mean over steps; −1 if rows never differ |
    | rollout_steps | sample, step, region, region_to | the rollout at each step |
    | pooled | sample, layer, region, region_to | attention between regions at each layer, without rollout |
    | gold | sample | names of the gold documents' regions |
    | gold_position | sample | number of the (first) gold document, counted from 1; −1 without one |
    | follows | sample | writing rows: attention per token of a gold document minus of another, over the mean document |
    | follows_rollout | sample | the same for the rollout from the answer |
    """
    return per_sample(
        traces,
        lambda trace: _measure_one(trace, step, residual, stop),
        "flow",
        residual=int(residual),
        stop=stop,
        rule="",
    )


def _measure_one(trace: Trace, step: int | None, residual: bool, stop: float) -> xr.Dataset:
    require(trace, "flow", finding="flow")
    flow = trace.data["flow"].transpose("step", "layer", "region", "region_to")
    if step is not None:
        if step not in flow["step"].values:
            raise FloatLensError(f"step {step} was not recorded; steps go from 0 to {int(flow['step'].values[-1])}")
        flow = flow.sel(step=[step])
    values_SLRR = flow.values.astype(np.float64)
    # A region without queries has no row: an ARM's answer before its first token, or a prompt that was read before the
    # first step (as in the family canvas). Its column is missing only if it has no keys either.
    no_row_SR, no_column_SR = (np.nan_to_num(values_SLRR).sum(axis=(1, axis)) == 0 for axis in (3, 2))
    no_column_SR &= no_row_SR
    values_SLRR = np.where(no_row_SR[:, None, :, None] | no_column_SR[:, None, None, :], np.nan, values_SLRR)
    if residual:
        rolled, reached = zip(*(definitions.rollout_while_rows_differ(one, stop) for one in values_SLRR), strict=True)
        rolled_SRR, layer = np.array(rolled), float(np.mean(reached))
    else:
        rolled_SRR, layer = (
            np.array([rollout(one, residual=False) for one in values_SLRR]),
            float(values_SLRR.shape[1] - 1),
        )
    regions = [str(r) for r in flow["region"].values]
    gold = [g for g in trace.gold if g in regions]
    numbers = [document_number(g) for g in gold]
    rolled_RR = mean_over(rolled_SRR, 0)
    tokens_R = np.array([sum(r.end - r.start for r in trace.regions if r.name == name) for name in regions])
    writing_LR = _writing(trace, regions)
    per_token_LR = definitions.flow_per_token(writing_LR, np.broadcast_to(tokens_R, writing_LR.shape))
    answer_R = rolled_RR[regions.index("answer")] if "answer" in regions else np.full(len(regions), np.nan)
    return xr.Dataset(
        {
            "writing": (("layer", "region_to"), writing_LR),
            "writing_per_token": (("layer", "region_to"), per_token_LR),
            "rollout": (("region", "region_to"), rolled_RR),
            "rollout_layer": layer,
            "rollout_steps": (("step", "region", "region_to"), rolled_SRR),
            "pooled": (("layer", "region", "region_to"), mean_over(values_SLRR, 0)),
            "gold": np.array(", ".join(gold), dtype=object),
            "gold_position": numbers[0] if numbers else -1,
            "follows": follows(mean_over(per_token_LR, 0), regions, gold),
            "follows_rollout": follows(definitions.flow_per_token(answer_R, tokens_R), regions, gold),
        },
        coords={"step": flow["step"], "layer": flow["layer"], "region": regions, "region_to": regions},
    )


def _writing(trace: Trace, regions: list[str]) -> Array:
    """Attention of the writing rows to each region (layer, region); NaN if they were not recorded."""
    found = np.full((trace.data.sizes["layer"], len(regions)), np.nan)
    if "received_writing" not in trace.data:
        return found
    rows_SLT = np.nan_to_num(writing_profile(trace))
    if not len(rows_SLT):
        return found
    mean_LT = rows_SLT.mean(axis=0)
    for index, name in enumerate(regions):
        spans = [slice(region.start, region.end) for region in trace.regions if region.name == name]
        if spans:
            found[:, index] = sum(mean_LT[:, span].sum(axis=-1) for span in spans)
    return found


def document_number(region: str) -> int:
    """The number in a document's region name, −1 for another region.

    >>> document_number("doc12"), document_number("query")
    (12, -1)
    """
    match = re.fullmatch(r"doc(\d+)", region)
    return int(match[1]) if match else -1


def ordered(regions: list[str]) -> list[str]:
    """Regions in the order of a prompt: bos, instruction, documents by number, query, others, answer, template.

    >>> ordered(["answer", "doc10", "doc2", "bos", "other", "query"])
    ['bos', 'doc2', 'doc10', 'query', 'answer', 'other']
    """
    rank = {"bos": 0, "instruction": 1, "query1": 2, "query": 4, "answer": 6, "other": 7}
    return sorted(regions, key=lambda r: (3 if document_number(r) > 0 else rank.get(r, 5), document_number(r)))


def figure(
    traces: Traces,
    *,
    step: int | None = None,
    residual: bool = True,
    source: str = "answer",
    view: str = "rollout",
    paper: bool = False,
    backend: str = "matplotlib",
) -> Figure | pd.DataFrame:
    """Draw region × region after rollout, one column per gold position, or flow from `source` by layer or step.

    `paper` adds the published rollouts of LLaDA, which go through all layers.
    """
    style.check_backend(backend)
    style.check_view(view, VIEWS)
    measured = traces if is_measured(traces, "flow") else measure(traces, step=step, residual=residual)
    if source not in measured["region"].values:
        known = ", ".join(map(str, measured["region"].values))
        raise FloatLensError(f"there is no region {source!r} to start from; the regions are {known}")
    data = _cells(measured) if view == "rollout" else _lines(measured, source, "layer" if view == "layers" else "step")
    if paper and view == "rollout":
        data = pd.concat([data, published.flow_rows()], ignore_index=True)
    if backend == "none":
        return data
    return _draw_maps(measured, data) if view == "rollout" else _draw_lines(measured, data, source)


def _cells(measured: xr.Dataset) -> pd.DataFrame:
    """One row per model, gold position and pair of regions."""
    order = ordered([str(r) for r in measured["region"].values])
    rolled = measured["rollout"].sel(region=order, region_to=order).values
    models, positions = measured["model"].values, measured["gold_position"].values
    parts = []
    for model in models_of(measured):
        for position in sorted(set(positions[models == model])):
            rows = (models == model) & (positions == position)
            columns = {
                "model": model,
                "gold_position": int(position),
                "region": np.repeat(order, len(order)),
                "region_to": np.tile(order, len(order)),
                "flow": mean_over(rolled[rows], 0).ravel(),
                "n": int(rows.sum()),
            }
            parts.append(pd.DataFrame(columns).dropna(subset="flow"))
    return pd.concat(parts, ignore_index=True)


def _lines(measured: xr.Dataset, source: str, along: str) -> pd.DataFrame:
    """One row per model, target and layer or step: mean and std over samples of the flow from `source`."""
    variable = measured["pooled" if along == "layer" else "rollout_steps"].sel(region=source)
    values_NXR = variable.transpose("sample", along, "region_to").values
    regions = [str(r) for r in measured["region_to"].values]
    per_target = np.full((len(TARGETS), *values_NXR.shape[:2]), np.nan)
    for n, gold in enumerate(str(g) for g in measured["gold"].values):
        for t, target in enumerate(TARGETS):
            chosen = columns_of(target, regions, gold.split(", ") if gold else [])
            if chosen:
                per_target[t, n] = mean_over(values_NXR[n][:, chosen], 1)
    parts = []
    for model in models_of(measured):
        rows = measured["model"].values == model
        for t, target in enumerate(TARGETS):
            mean, std, _ = spread(per_target[t, rows])
            columns = {
                "model": model,
                "to": target,
                along: measured[along].values,
                "mean": mean,
                "std": std,
            }
            parts.append(pd.DataFrame(columns).dropna(subset="mean"))
    return pd.concat(parts, ignore_index=True)


def columns_of(target: str, regions: list[str], gold: list[str]) -> list[int]:
    """Indices of the regions that make up a target of flow.

    >>> columns_of("another document", ["bos", "doc1", "doc2"], ["doc2"])
    [1]
    """
    if target == "gold document":
        return [i for i, r in enumerate(regions) if r in gold]
    if target == "another document":
        return [i for i, r in enumerate(regions) if document_number(r) > 0 and r not in gold]
    return [i for i, r in enumerate(regions) if r == target]


def _draw_maps(measured: xr.Dataset, data: pd.DataFrame) -> Figure:
    models = list(dict.fromkeys(data["model"]))
    positions = sorted(set(data["gold_position"]))
    with style.sheet():
        width = max(3.4, min(style.WIDTH, 1.6 + 1.8 * len(positions)))
        side_length = (width - 1.6) / len(positions)
        figure = style.new_figure(0.5 + (side_length + 0.85) * len(models), width=width)
        grid = figure.subplots(len(models), len(positions), squeeze=False)
        for row, model in enumerate(models):
            regions = ordered(list(dict.fromkeys(data.loc[data["model"] == model, "region_to"])))
            norm = PowerNorm(0.5, 0.0, 100 * largest_of_interest(data[data["model"] == model]))
            for column, position in enumerate(positions):
                axes = grid[row, column]
                part = data[(data["model"] == model) & (data["gold_position"] == position)]
                if part.empty:
                    axes.set_axis_off()
                    continue
                values = part.pivot(index="region", columns="region_to", values="flow").reindex(
                    index=regions, columns=regions
                )
                mesh = draw.attention_map(axes, 100 * values.to_numpy(), norm=norm)
                indices = np.arange(len(regions))
                axes.set_xticks(indices, labels=regions, rotation=90)
                axes.set_yticks(indices, labels=regions if column == 0 else [])
                axes.tick_params(
                    labelsize=min(7, 72 * 0.85 * side_length / len(regions))
                )  # a cell is as wide as a line
                axes.set_aspect("equal")
                if position > 0:
                    gold = regions.index(f"doc{position}")
                    axes.axvspan(gold - 0.5, gold + 0.5, fill=False, ec=GOLD, lw=1.2, zorder=3)
                    axes.set_xticks(indices, labels=[*regions[:gold], f"doc{position} (gold)", *regions[gold + 1 :]])
                    axes.get_xticklabels()[gold].set(color=GOLD, weight="bold")
                if row == 0:
                    axes.set_title(
                        f"gold at {position}" if position > 0 else "no gold document", color=GOLD, weight="bold"
                    )
            grid[row, 0].set_ylabel(f"{style.short(model, 22)}\nfrom")
            bar = figure.colorbar(mesh, ax=list(grid[row]), pad=0.01, aspect=16, extend="max")
            bar.set_label("flow (% of the row)")
        for axes in grid[-1]:
            axes.set_xlabel("to")
        how = "rollout without residual"
        if measured.attrs["residual"]:
            how = f"rollout with residual (A + I)/2 to layer {float(measured['rollout_layer'].mean()):.1f} on average"
        text = "mean over steps and samples; the gold document's column is framed. Each model has its own scale"
        style.caption(figure, f"Region flow, {how}, {text}; flow to bos may lie beyond it.")
    return figure


def largest_of_interest(data: pd.DataFrame) -> float:
    """The top of the colour scale: the largest flow between different regions, not counting flow to bos.

    After many causal layers nearly all flow ends at bos; a scale that includes it would hide everything else.
    """
    between = data[(data["region"] != data["region_to"]) & (data["region_to"] != "bos")]
    return max(float(between["flow"].max()), 1e-6)


def _draw_lines(measured: xr.Dataset, data: pd.DataFrame, source: str) -> Figure:
    models, along = models_of(measured), "layer" if "layer" in data else "step"
    colours, markers = style.colour_of(TARGETS), style.marker_of(TARGETS)
    with style.sheet():
        figure = style.new_figure(2.5, width=max(3.6, min(style.WIDTH, 2.5 * len(models))))
        grid = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axes, model in zip(grid, models, strict=True):
            for target in TARGETS:
                part = data[(data["model"] == model) & (data["to"] == target)]
                look: dict[str, Any] = {"color": colours[target], "marker": markers[target], "label": f"to {target}"}
                draw.band(axes, part, along, scale=100, **look)
            axes.set(title=style.short(model), xlabel=along)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        grid[0].set_ylim(bottom=0)
        grid[0].set_ylabel(f"flow from the {source} (%)")
        figure.legend(
            *grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(TARGETS), columnspacing=1.0
        )
        what = "attention by layer, no rollout" if along == "layer" else "rollout at each step"
        style.caption(figure, f"Region flow, {what}; mean ± std over samples.")
    return figure


@register_claim("flow.gold")
def follows_gold(measured: xr.Dataset, *, mdm: str | None = None) -> Outcome:
    rows = rows_of(measured, "mdm", mdm)
    values, positions = measured["follows"].values, measured["gold_position"].values
    seen = sorted({int(p) for p in positions[rows][np.isfinite(values[rows])]})
    blocked = f"gold is always doc{seen[0]}: position and relevance cannot be distinguished" if len(seen) == 1 else ""
    return mean_of(
        measured,
        values,
        kind="mdm",
        model=mdm,
        what="samples with a gold document",
        beside={
            **{f"gold at {p}": np.where(positions == p, values, np.nan) for p in seen if p > 0},
            "by rollout": measured["follows_rollout"].values,
            "last layer of the rollout": measured["rollout_layer"].values.astype(float),
        },
        blocked=blocked,
    )


def pool(attention_TT: Array, spans: list[tuple[int, int]]) -> Array:
    """Attention summed over queries and keys of each pair of regions, rows normalised; an empty region's row is zero.

    >>> pool(np.full((4, 4), 0.25), [(0, 1), (1, 4)])
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    member_RT = np.zeros((len(spans), len(attention_TT)))
    for index, (start, end) in enumerate(spans):
        member_RT[index, start:end] = 1.0
    return normalised(member_RT @ attention_TT.astype(np.float64) @ member_RT.T)


def normalised(rows: Array) -> Array:
    """Rows scaled to sum to one; a row of zeros stays one."""
    total = rows.sum(axis=-1, keepdims=True)
    return np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)


def rollout(pooled_LRR: Array, *, residual: bool = True) -> Array:
    """Product of the layers' flows, the first layer's rightmost; each (A + I)/2, rows normalised, with the residual.

    A region that does not exist yet (NaN) is left out and stays NaN. A region with a column but no row (NaN) keeps the
    flow that it receives.

    >>> rollout(np.array([[[0.0, 1.0], [0.0, 1.0]]]))
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    no_row, no_column = (np.asarray(~np.isfinite(pooled_LRR).any(axis=axes)) for axes in ((0, 2), (0, 1)))
    flows = np.nan_to_num(pooled_LRR.astype(np.float64))
    identity = np.eye(flows.shape[-1])
    through = identity
    for one in flows:
        through = normalised((one + identity) / 2 if residual else one + np.diag(no_row)) @ through
    return np.where(no_row[:, None] | no_column, np.nan, through)


def follows(to_R: Array, regions: list[str], gold: list[str]) -> float:
    """Flow to a gold document minus to another one, over the mean over documents; NaN without both.

    The effect of position cancels if every position was gold equally often.

    >>> round(follows(np.array([0.6, 0.2, 0.2]), ["doc1", "doc2", "answer"], ["doc1"]), 6)
    1.0
    """
    to_gold, to_others = (columns_of(t, regions, gold) for t in TARGETS[:2])
    if not to_gold or not to_others:
        return float("nan")
    whole = to_R[to_gold + to_others].mean()
    return float((to_R[to_gold].mean() - to_R[to_others].mean()) / whole) if whole > 0 else float("nan")


def tables(measured: xr.Dataset) -> list[ReportTable]:
    rows = []
    for model, kind, part in by_model(measured):
        targets = {f"to {name}": share for name, share in _from_answer(part).items()}
        rows.append({"model": model, "kind": kind, **targets, "samples": part.sizes["sample"]})
    return [as_table("Rollout from the answer, share of the row, mean over samples", pd.DataFrame(rows), number)]


def sentences(measured: xr.Dataset) -> list[str]:
    found = []
    for model, kind, part in by_model(measured):
        to = _from_answer(part)
        gold, other = to["gold document"], to["another document"]
        more = "more" if gold > other else "less"
        found.append(
            f"Up to layer {number(mean(part['rollout_layer'].values), 2)}, where sources can still be distinguished, "
            f"the answer of {model} ({kind}) draws {percent(gold, 1)} from the gold document and "
            f"{percent(other, 1)} from each other one on average, {more} from the gold by "
            f"{percent(abs(gold - other), 1)} of the row; {percent(to['query'], 1)} comes from the question and "
            f"{percent(to['answer'])} from the answer itself."
        )
    positions = sorted({int(p) for p in measured["gold_position"].values if p > 0})
    if len(positions) > 1:
        found.append(
            f"Gold is at {len(positions)} different positions, so position and relevance can be distinguished."
        )
    return found


def select(measured: xr.Dataset, view: str) -> xr.Dataset:
    """For the map, select the samples with the most common number of documents, as others need a different map."""
    if view != "rollout":
        return measured
    documents = [i for i, name in enumerate(measured["region"].values) if document_number(str(name)) > 0]
    has_column_NR = np.isfinite(measured["rollout"].values).any(axis=1)
    counts = has_column_NR[:, documents].sum(axis=1)
    commonest = Counter(counts.tolist()).most_common(1)[0][0]
    return measured.isel(sample=np.flatnonzero(counts == commonest))


def _from_answer(part: xr.Dataset) -> dict[str, float]:
    regions = [str(r) for r in part["region_to"].values]
    rows_NR: Array = part["rollout"].sel(region="answer").values
    found: dict[str, list[float]] = {name: [] for name in TARGETS}
    for row_R, gold in zip(rows_NR, part["gold"].values, strict=True):
        for name in TARGETS:
            columns = columns_of(name, regions, str(gold).split(", ") if gold else [])
            if columns:
                found[name].append(float(mean_over(row_R[columns], 0)))
    return {name: mean(values) if values else float("nan") for name, values in found.items()}  # type: ignore[arg-type]


REPORT = ReportText(
    title="Region flow",
    question="Which parts of the prompt does the answer attend to?",
    views={
        "rollout": (
            "Flow between regions, one column per position of the gold document",
            "A row shows where the flow into a region comes from, in percent of the row; the framed column is the gold "
            "document. A mark that moves with the frame is flow that follows the gold document. Only prompts with the "
            "most common number of documents are shown. A region whose row is blank was read before the first step, so only "
            "the attention to it was observed. An ARM's values above the diagonal come from the region "
            "`other`, the template's tokens throughout the prompt; an ARM does not attend to later positions.",
        ),
        "layers": (
            "What the answer attends to, by layer",
            "Attention from the answer to each target at each layer, without rollout.",
        ),
        "steps": (
            "Sources of the answer, step by step",
            "The rollout at each step: whether the model moves from the question to the evidence, or to its own words.",
        ),
    },
    tables=tables,
    sentences=sentences,
    select=select,
)
flow = register_finding(
    Finding("flow", paper="region flow", measure=measure, figure=figure, views=VIEWS, report=REPORT, setting="passages")
)
claims = flow.claims
