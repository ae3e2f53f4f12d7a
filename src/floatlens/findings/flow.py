"""Flow: which parts of the prompt the answer attends to, and whether it follows the gold document.

Region flow of arXiv 2601.07894. The claim uses the writing rows (see `samples`): their attention to each document
per token of the document, because a sum over tokens favours long documents. The rollout (Abnar and Zuidema 2020)
multiplies the regions' attention, (A + I)/2 with the residual stream, through the layers. Over many layers it converges
to a vector that is the same for every source, and no longer depends on the answer. It therefore stops at the last layer
at which its rows still differ, and that layer is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from floatlens.errors import FloatLensError
from floatlens.evaluation.collection import ROLES, Lives
from floatlens.findings import definitions, draw, published, style
from floatlens.findings.finding import Finding, declare_finding, register_claim
from floatlens.findings.positions import region_positions, writing_profile, writing_steps
from floatlens.findings.samples import depths, mean, mean_over, parts_of, sample_name
from floatlens.findings.verdict import Verdict, difference, mean_of, rows_of
from floatlens.stats import NAN, Array
from floatlens.trace.trace import Trace

GOLD = "#007a7a"
TARGETS = ("gold", "others", "query", "bos", "answer")
STOP = 0.1  # total variation; below it, the rollout no longer depends on the source


def draw_rollout(measured: xr.Dataset, *, paper: bool = False, backend: str) -> Figure | pd.DataFrame:
    """Draw region × region after rollout, one map per gold position; `paper` adds the published ones of LLaDA."""
    data = pd.concat([_cells(measured), published.flow_rows() if paper else None], ignore_index=True)
    return data if backend == "none" else _draw_maps(measured, data)


def sentences(measured: xr.Dataset) -> list[str]:
    n = len({int(p) for p in measured["gold_position"].values if p > 0})
    text = f"Gold is at {n} different positions, so position and relevance can be distinguished."
    return [*Finding.sentences(flow, measured), *([text] if n > 1 else [])]


def select(measured: xr.Dataset, view: str) -> xr.Dataset:
    """For the map, select the samples with the most common number of documents, as others need a different map."""
    if view != "rollout":
        return measured
    documents = [i for i, name in enumerate(measured["region"].values) if document_number(str(name)) > 0]
    counts = np.isfinite(measured["rollout"].values).any(axis=1)[:, documents].sum(axis=1)
    commonest = Counter(counts.tolist()).most_common(1)[0][0]
    return measured.isel(sample=np.flatnonzero(counts == commonest))


@declare_finding(draw_rollout=draw_rollout, sentences=sentences, select=select)
def flow(trace: Trace, *, step: int | None = None, residual: bool = True, stop: float = STOP) -> xr.Dataset:
    """Measure how attention flows between regions, as a mean over steps or at one step.

    The rollout stops at the last layer at which two of its rows differ by `stop` in total variation; 0 rolls out all
    layers, and so does a rollout without the residual.
    """
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
    rolled_SRR, reached_S = zip(
        *(definitions.rollout_while_rows_differ(one, stop, residual) for one in values_SLRR), strict=True
    )
    rolled_RR = mean_over(np.array(rolled_SRR), 0)
    regions = [str(r) for r in flow["region"].values]
    gold = [g for g in trace.gold if g in regions]
    own_R = [region_positions(trace, name) for name in regions]
    tokens_R = np.array([len(own) for own in own_R])
    per_token_R = _written_per_token(trace, own_R)
    # the rows of the answer
    row_SLR, by_step_SR, answer_R = (
        each[..., regions.index("answer"), :] if "answer" in regions else np.full_like(each[..., 0, :], np.nan)
        for each in (values_SLRR, np.array(rolled_SRR), rolled_RR)
    )
    written_S = np.isin(flow["step"].values, writing_steps(trace))
    query = [n for n, name in enumerate(regions) if name.rstrip("0123456789") == "query"]
    early, late = _thirds(mean_over(row_SLR[..., query].sum(axis=-1), 1)[written_S]) if query else (NAN, NAN)
    prompt_L = 1 - row_SLR[0, :, columns_of("answer", regions, gold)].sum(axis=0)
    depth = depths(trace, flow["layer"].values)
    middle = (depth >= 1 / 3) & (depth <= 2 / 3)
    inner, outer = mean(prompt_L[middle]), mean(prompt_L[~middle])
    targets: dict[str, Any] = {}
    for target in TARGETS:
        own = columns_of(target, regions, gold)
        targets[f"to_{target}"] = "layer", mean_over(mean_over(row_SLR, 0)[:, own], -1)
        targets[f"steps_to_{target}"] = "step", mean_over(by_step_SR[:, own], -1)
        targets[f"rolled_to_{target}"] = mean(answer_R[own])
    return xr.Dataset(
        {
            "query_early": early,
            "query_late": late,
            "query_fall": float(np.log2(early / late)) if min(early, late) > 0 else NAN,
            "middle_share": inner,
            "outer_share": outer,
            "outer_prompt": outer - inner,
            "recent": recency(per_token_R, regions, gold),
            "rollout": (("region", "region_to"), rolled_RR),
            "rollout_layer": float(np.mean(reached_S)),
            **targets,
            "gold": np.array(", ".join(gold), dtype=object),
            "gold_position": document_number(gold[0]) if gold else -1,
            "follows": follows(per_token_R, regions, gold),
            "follows_rollout": follows(definitions.flow_per_token(answer_R, tokens_R), regions, gold),
        },
        coords={"step": flow["step"], "layer": flow["layer"], "region": regions, "region_to": regions},
    )


def _written_per_token(trace: Trace, own_R: Sequence[Array]) -> Array:
    """Attention of the writing rows per token of each region, mean over layers; NaN if they were not recorded."""
    rows_SLT = np.nan_to_num(writing_profile(trace)) if "received_writing" in trace.data else np.empty(0)
    if not len(rows_SLT):
        return np.full(len(own_R), np.nan)
    mean_T = rows_SLT.mean(axis=(0, 1), dtype=np.float64)
    return np.array([mean_T[own].mean() if len(own) else np.nan for own in own_R])


def follows(to_R: Array, regions: list[str], gold: list[str]) -> float:
    """Flow to a gold document minus to another one, over the mean over documents; NaN without both.

    The effect of position cancels if every position was gold equally often.
    """
    to_gold, to_others = (columns_of(t, regions, gold) for t in TARGETS[:2])
    if not to_gold or not to_others:
        return NAN
    whole = to_R[to_gold + to_others].mean()
    return float((to_R[to_gold].mean() - to_R[to_others].mean()) / whole) if whole > 0 else NAN


def recency(to_R: Array, regions: list[str], gold: list[str]) -> float:
    """Flow to the last document that is not gold minus to the first one, over the mean over documents; NaN without two."""
    others = sorted(columns_of(TARGETS[1], regions, gold), key=lambda column: document_number(regions[column]))
    whole = to_R[others + columns_of(TARGETS[0], regions, gold)].mean() if others else 0.0
    return float((to_R[others[-1]] - to_R[others[0]]) / whole) if len(others) > 1 and whole > 0 else NAN


def _thirds(values_S: Array) -> tuple[float, float]:
    """Means over the first and the last third; NaN with fewer than three values."""
    third = len(values_S) // 3
    return (mean(values_S[:third]), mean(values_S[-third:])) if third else (NAN, NAN)


def document_number(region: str) -> int:
    """The number in a document's region name, −1 for another region."""
    match = re.fullmatch(r"doc(\d+)", region)
    return int(match[1]) if match else -1


def ordered(regions: list[str]) -> list[str]:
    """Regions in the order of a prompt: bos, instruction, documents by number, query, others, answer, template."""
    rank = {"bos": 0, "instruction": 1, "query1": 2, "query": 4, "answer": 6, "other": 7}
    return sorted(regions, key=lambda r: (3 if document_number(r) > 0 else rank.get(r, 5), document_number(r)))


def columns_of(target: str, regions: list[str], gold: list[str]) -> list[int]:
    """Indices of the regions that make up a target of flow."""
    if target == "gold":
        return [i for i, r in enumerate(regions) if r in gold]
    if target == "others":
        return [i for i, r in enumerate(regions) if document_number(r) > 0 and r not in gold]
    return [i for i, r in enumerate(regions) if r == target]


def _always_at(measured: xr.Dataset, rows: Array) -> str:
    """Why position and relevance cannot be distinguished: gold is always the same document; empty if they can."""
    known = np.isfinite(measured["follows"].values[rows])
    seen = {int(p) for p in measured["gold_position"].values[rows][known]}
    return f"gold is always doc{seen.pop()}: position and relevance cannot be distinguished" if len(seen) == 1 else ""


@register_claim("flow.gold")
def follows_gold(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    rows = rows_of(measured, "mdm", mdm)
    values, positions = measured["follows"].values, measured["gold_position"].values
    beside = {
        **{f"gold at {p}": np.where(positions == p, values, np.nan) for p in sorted(set(positions[rows])) if p > 0},
        "by rollout": measured["follows_rollout"].values,
        "last layer of the rollout": measured["rollout_layer"].values.astype(float),
    }
    found = mean_of(measured, values, kind="mdm", model=mdm, what="samples with a gold document", beside=beside)
    return found.unless(_always_at(measured, rows))


@register_claim("flow.gold_more")
def follows_gold_more(measured: xr.Dataset, *, mdm: str | None = None, arm: str | None = None) -> Verdict:
    found = difference(measured, measured["follows"].values, mdm=mdm, arm=arm)
    always = [_always_at(measured, rows_of(measured, *side)) for side in (("mdm", mdm), ("arm", arm))]
    return found.unless(always[0] or always[1])


# Passages with roles, such as correct or wrong, in a changing collection


def attention_by_role(traces: Iterable[Trace], streams: Mapping[str, Lives]) -> pd.DataFrame:
    """Return one row per trace and role of passages: the attention of the writing rows to it, mean over steps and layers.

    `share` is the sum over the role's passages; `per_token` is their mean per token, relative to all passages of the
    prompt (1: as much as the average passage). A role that is not among the retrieved passages has no row.
    """
    samples = {
        f"{data}, collection={stage}, {sample.id}": (data, stage, sample)
        for data, stages in streams.items()
        for stage, several in stages.items()
        for sample in several
    }
    rows = []
    for trace in traces:
        data, stage, sample = samples[sample_name(trace)]
        rows_SLT = np.nan_to_num(writing_profile(trace))
        roles = sample.meta["roles"]
        if not len(rows_SLT) or not roles:
            continue
        mean_T = rows_SLT.mean(axis=(0, 1), dtype=np.float64)
        documents = [mean_T[region_positions(trace, f"doc{n}")] for n in range(1, len(roles) + 1)]
        level = np.concatenate(documents).mean()
        about = {"model": trace.model, "data": data, "stage": stage, "id": sample.id}
        for role in ROLES:
            own = [mass for mass, its in zip(documents, roles, strict=True) if its == role]
            if sum(map(len, own)):
                mass = np.concatenate(own)
                rows.append({**about, "role": role, "share": mass.sum(), "per_token": mass.mean() / level})
    return pd.DataFrame(rows, columns=["model", "data", "stage", "id", "role", "share", "per_token"])


# Figures


def _cells(measured: xr.Dataset) -> pd.DataFrame:
    """One row per model, gold position and pair of regions."""
    order = ordered([str(r) for r in measured["region"].values])
    parts = []
    for _, part in parts_of(measured):
        for position, there in part.sel(region=order, region_to=order).groupby("gold_position"):
            cells = draw.table_of(there, ["rollout"], "region", "region_to")
            parts.append(cells.assign(gold_position=int(position)).rename(columns={"mean": "flow"}))
    return pd.concat(parts, ignore_index=True)[["model", "gold_position", "region", "region_to", "flow", "n"]]


def _draw_maps(measured: xr.Dataset, data: pd.DataFrame) -> Figure:
    first, *others = dict.fromkeys(data["model"])
    models = [first, *sorted(others, key=lambda name: not name.endswith("(paper)"))]  # `paper` was asked for
    positions = data.groupby("model")["gold_position"].unique().map(sorted)
    each = 2 if positions.map(len).max() > 1 else 1
    chosen = [(model, position) for model in models for position in _spaced(positions[model], each)]
    parts = []
    for model, position in chosen[: style.PANELS]:
        part = data[(data["model"] == model) & (data["gold_position"] == position)]
        title = f"{style.short(model, 22)}\n{f'gold at {position}' if position > 0 else 'no gold document'}"
        to = part["region_to"].replace(f"doc{position}", f"doc{position} (gold)")
        parts.append(part.assign(panel=title, region_to=to, flow=100 * part["flow"]))
    how = "rollout without residual"
    if measured.attrs["residual"]:
        how = f"rollout with residual (A + I)/2 to layer {float(measured['rollout_layer'].mean()):.1f} on average"
    note = f"Region flow, {how}, mean over steps and samples; flow to bos may lie beyond the scale."
    norm = PowerNorm(0.5, 0.0, 100 * largest_of_interest(data))
    shown = pd.concat(parts)
    figure = draw.maps(shown, "region", "region_to", value="flow", label="flow (% of the row)", note=note, norm=norm)
    for axes in figure.axes:
        for column, label in enumerate(axes.get_xticklabels()):
            if label.get_text().endswith("(gold)"):
                axes.axvspan(column - 0.5, column + 0.5, fill=False, ec=GOLD, lw=1.2, zorder=3)
                label.set(color=GOLD, weight="bold")
    return figure


def _spaced(values: list[int], count: int) -> list[int]:
    """At most `count` of the values, evenly spaced, with the first and the last."""
    count = min(count, len(values))
    return [values[round(n * (len(values) - 1) / max(count - 1, 1))] for n in range(count)]


def largest_of_interest(data: pd.DataFrame) -> float:
    """The largest flow between different regions, not counting that to bos, which would hide everything else."""
    between = data[(data["region"] != data["region_to"]) & (data["region_to"] != "bos")]
    return max(float(between["flow"].max()), 1e-6)


measure, figure, claims = flow.measure, flow.figure, flow.claims
