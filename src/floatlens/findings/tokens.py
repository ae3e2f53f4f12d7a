"""Token kinds: whether the anchors are structure or content, and whether this changes with depth.

"Shallow structure-aware, deep content-focused" (arXiv 2601.07894). Every anchor has a kind (see `data.token_kinds`). The
finding is the share of each kind among anchors, by number and by attention, layer by layer, next to how common the kind is.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from floatlens.data.token_kinds import GROUPS, KINDS, Classifier, classify, groups_of
from floatlens.errors import FloatLensError
from floatlens.findings import style
from floatlens.findings.definitions import normalise
from floatlens.findings.finding import declare_finding, register_claim
from floatlens.findings.positions import Layers, anchors_of, answer_positions
from floatlens.findings.samples import depths, halves, mean, models_of, parts_of
from floatlens.findings.spelling import percent
from floatlens.findings.verdict import Verdict, mean_of, rows_of
from floatlens.stats import Array
from floatlens.trace.trace import Trace

EDGE = 0.05  # a share this near to 0 or 1 cannot differ between layers
SHADES = dict(
    zip(
        KINDS,
        ("#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#fdd0a2", "#fd8d3c", "#d94801"),
        strict=True,
    )
)  # structure in blues, content in oranges, which differ in lightness too


def draw_depth(measured: xr.Dataset, *, backend: str) -> Figure | pd.DataFrame:
    """Draw anchor mass by kind: one bar per layer, one panel per model; structure in blue, content in orange."""
    data = table(measured)
    if backend == "none":
        return data
    models, left_out = style.shown(models_of(measured))
    names = [str(k) for k in measured["kind"].values]
    shades = SHADES if set(names) <= set(SHADES) else {"structural": "#2171b5", "lexical": "#fd8d3c"}
    with style.sheet():
        figure = style.new_figure(2.9, width=max(4.2, min(style.WIDTH, 2.3 * len(models) + 1.2)))
        grid = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axes, model in zip(grid, models, strict=True):
            part = data[data["model"] == model]
            height = 100 * part.pivot(index="layer", columns="kind", values="mass")[names].fillna(0)
            aside = height.index.max() + max(1.5, 0.12 * len(height))  # the bar of all tokens
            height.loc[aside] = 100 * part.drop_duplicates("kind").set_index("kind")["base"]
            below = height.cumsum(axis=1) - height
            for name in names:
                bar = {"width": 0.92, "color": shades[name], "label": name, "ec": "white", "lw": 0.3}
                axes.bar(height.index, height[name], bottom=below[name], **bar)
            ticks = height.index[:-1].astype(int)[:: max(1, -(-len(height) * len(models) // 24))]
            axes.set_xticks([*ticks, aside], labels=[*map(str, ticks), "all\ntokens"])
            axes.set(title=style.short(model), xlabel="layer", ylim=(0, 100))
        grid[0].set_ylabel("anchor mass by kind (%)")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", handlelength=1.0)
        what = f"Anchors by {measured.attrs['rule']}, all steps; structure in blues, content in oranges."
        style.caption(figure, what + left_out)
    return figure


@declare_finding(draw_depth=draw_depth)
def tokens(
    trace: Trace, *, layer: Layers = None, rule: str = "sigma(3)", classifier: Classifier | None = None
) -> xr.Dataset:
    """Measure what kinds of token the anchors are: shares that sum to one over `kind`, all steps; NaN without anchors.

    `classifier(token_strings) -> kinds` replaces the built-in one; it may also return just `structural` and `lexical`.
    """
    a, anchors_SLT = anchors_of(trace, rule, layer)
    kinds_ST = kinds_by_step(trace, classifier)
    names = KINDS if set(np.unique(kinds_ST)) <= {*KINDS, ""} else ("structural", "lexical")
    if names != KINDS:
        kinds_ST = np.array(groups_of(kinds_ST.ravel().tolist()), dtype=object).reshape(kinds_ST.shape)
    one_hot_KST = np.array([kinds_ST == name for name in names])
    mass_SLT = np.where(anchors_SLT, a.values, 0.0)
    groups = np.array([GROUPS.get(name, name) for name in names], dtype=object)
    text_ST = written_text(trace)
    structural_ST = one_hot_KST[groups == "structural"].any(axis=0) & text_ST
    by_group = np.array([structural_ST, text_ST & ~structural_ST & (kinds_ST != "")])
    shallow, deep = halves(shares(mass_SLT, by_group)[:, 0], depths(trace, a["layer"].values))
    return xr.Dataset(
        {
            "structural_shallow": shallow,
            "structural_deep": deep,
            "structural_base": float(by_group[0].sum() / max(by_group.sum(), 1)),
            "odds_difference": log_odds(shallow) - log_odds(deep),
            "share": (("layer", "kind"), shares(anchors_SLT, one_hot_KST)),
            "mass": (("layer", "kind"), shares(mass_SLT, one_hot_KST)),
            "base": ("kind", one_hot_KST.sum(axis=(1, 2)) / (kinds_ST != "").sum()),
        },
        coords={"layer": a["layer"], "kind": list(names), "group": ("kind", groups)},
    )


def written_text(trace: Trace) -> Array:
    """True (step, position) for tokens of the text: no masks, no fill after the end token, none of the template."""
    ids_ST = trace.data["tokens"].values
    fill_T = np.arange(ids_ST.shape[1]) >= trace.prompt_length
    fill_T[answer_positions(trace)] = False
    return ~np.isin(ids_ST, mask_ids(trace)) & (ids_ST >= 0) & ~fill_T & ~np.array(template_positions(trace))


def log_odds(share: float | Array) -> float:
    """Logarithm of share / (1 − share), for shares between 0.01 and 0.99."""
    near = np.clip(share, 0.01, 0.99)
    return float(np.log(near / (1 - near)))


def kinds_by_step(trace: Trace, classifier: Classifier | None = None) -> Array:
    """Kind of the token at each step and position (object array), empty where there is none.

    The finished text is classified as a whole, since a word's kind depends on its pieces and neighbours; a token that
    is different at a step (a mask, or a token that is revised later) is classified separately. Special tokens and the mask
    are recognised by their ids if the trace has them.
    """
    ids_ST, final = trace.data["tokens"].values, trace.final_tokens
    ask = classifier or (lambda tokens: classify(tokens, template_positions(trace)))
    strings = trace.strings()
    if all(re.fullmatch(r"<\d+>", s) for s in strings):  # ids instead of strings: nothing to classify
        sample = trace.data.attrs.get("sample_id") or trace.model
        raise FloatLensError(f"the trace of {sample!r} holds no token strings; trace it with the model's tokenizer")
    last = [str(kind) for kind in ask(strings)]
    groups_of(last)  # refuses unknown kinds
    if len(last) != len(strings):
        raise FloatLensError(
            f"the classifier returned {len(last)} kinds for {len(strings)} tokens; it must return one per token"
        )
    found = np.broadcast_to(np.array(last, dtype=object), ids_ST.shape).copy()
    differs = (ids_ST != final) & (ids_ST >= 0)
    for token in np.unique(ids_ST[differs]):
        where = differs & (ids_ST == token)
        step, position = (int(x[0]) for x in np.nonzero(where))
        text = trace.strings(int(trace.data["step"].values[step]))[position]
        found[where] = (classifier or classify)([text])[0]
    if classifier is None:
        special = json.loads(trace.data.attrs.get("special_ids", "[]"))
        found[np.isin(ids_ST, special) & (found != "mask")] = "special"
        found[np.isin(ids_ST, mask_ids(trace))] = "mask"
    found[ids_ST < 0] = ""
    return found


def mask_ids(trace: Trace) -> list[int]:
    """The id of an MDM's mask token: the one at all positions that are still to be written at the start."""
    first = trace.data["step"].values[0]
    open_T = trace.data["committed_at"].values >= first
    ids = np.unique(trace.data["tokens"].values[0][open_T])
    ids = ids[ids >= 0]  # later blocks do not exist yet
    return [int(ids[0])] if trace.kind == "mdm" and open_T.sum() > 1 and len(ids) == 1 else []


def template_positions(trace: Trace) -> list[bool]:
    """Prompt positions that belong to no region: the chat template's and the prompt template's own tokens."""
    inside = np.zeros(trace.data.sizes["position"], bool)
    for region in trace.regions:
        inside[region.start : region.end] = True
    inside[trace.prompt_length :] = True
    return [bool(x) for x in ~inside] if trace.regions else [False] * len(inside)


def table(traces: Any, **options: Any) -> pd.DataFrame:
    """Return one row per model, layer and kind: share of anchors and of their mass, mean over samples, and of all tokens."""
    parts = []
    for model, part in parts_of(tokens.measure(traces, **options)):
        n_L = np.isfinite(part["share"].values[..., 0]).sum(axis=0)
        there = np.isfinite(part["depth"].values).any(axis=0)
        frame = part[["share", "mass", "base"]].mean("sample").assign(n=("layer", n_L)).isel(layer=there)
        parts.append(frame.to_dataframe(["layer", "kind"]).reset_index().assign(model=model))
    names = ["model", "layer", "kind", "group", "share", "mass", "base", "n"]
    return pd.concat(parts, ignore_index=True)[names]


def shares(weight_SLT: Array, one_hot_KST: Array) -> Array:
    """Share of each kind in the number or the mass of the anchors (L, K), all steps together; NaN without anchors."""
    sums_LK = (weight_SLT.astype(np.float64) @ one_hot_KST.transpose(1, 2, 0).astype(np.float64)).sum(axis=0)
    return np.where(sums_LK.any(axis=1, keepdims=True), normalise(sums_LK), np.nan)


@register_claim("tokens.structure")
def structure_first(measured: xr.Dataset, *, mdm: str | None = None) -> Verdict:
    named = {"shallow half": "structural_shallow", "deep half": "structural_deep", "all tokens": "structural_base"}
    beside = {f"structural share, {label}": measured[name].values for label, name in named.items()}
    outcome = mean_of(measured, measured["odds_difference"].values, kind="mdm", model=mdm, beside=beside)
    rows = rows_of(measured, "mdm", mdm)
    low, high = sorted(mean(measured[name].values[rows]) for name in ("structural_shallow", "structural_deep"))
    edge = "ceiling" if low > 1 - EDGE else "floor" if high < EDGE else ""
    held = f"structural tokens hold {percent(low)} and {percent(high)} of the anchors' attention in the two halves"
    return outcome.unless(f"{edge}: {held}" if edge else "")


measure, figure, claims = tokens.measure, tokens.figure, tokens.claims
