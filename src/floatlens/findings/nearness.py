"""Compare a run with the paper's published numbers.

Curves are compared by correlation and mean distance over relative depth, heads by rank correlation and by the overlap
of the strongest (head by head if the model has the same shape, otherwise layer by layer), everything else by the same
statistic side by side. A model is compared with the published models of its kind; the reader decides whether it should be
close to them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

from floatlens import paper
from floatlens.findings import published
from floatlens.findings.by_model import mean
from floatlens.findings.geometry import share_of_half
from floatlens.findings.heads import depth_of_scores, jaccard, top_heads
from floatlens.findings.samples import Array, mean_over, models_of
from floatlens.paper import definitions, facts, figures
from floatlens.stats import NAN, finite_or_none, spearman

KINDS = {"mdm": ("llada", "dream"), "arm": ("llama", "qwen")}
STRONGEST = 0.05


@dataclass(frozen=True)
class Nearness:
    """One comparison: the run's number and the paper's (None for a correlation or an overlap, where 1 is the same)."""

    finding: str
    model: str
    published: str
    number: str
    run: float
    paper: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "run": finite_or_none(self.run)}


def compare(measured: dict[str, xr.Dataset]) -> list[Nearness]:
    """Compare measurements, by finding name, with the published numbers; findings without published numbers are skipped."""
    rows: list[Nearness] = []
    for name, make in COMPARISONS.items():
        if name in measured:
            for model in models_of(measured[name]):
                part = measured[name].isel(sample=np.flatnonzero(measured[name]["model"].values == model))
                rows += make(model, str(part["model_kind"].values[0]), part)
    return rows


def _drift(model: str, kind: str, part: xr.Dataset) -> list[Nearness]:
    if kind != "mdm":
        return []
    rows = []
    depth_L = mean_over(part["depth"].values, 0)
    known = {fact.statistic: fact.values for fact in facts.facts() if fact.finding == "drift"}
    numbers = {
        "floating": "floating",
        "renewal": "renewal",
        "anchors per step": "n_anchors",
        "turnover per step (1 − Jaccard)": "turnover",
        "dwell (steps)": "dwell",
        "shift beyond the null": "shift",
    }
    for layer, depth in (("layer 0", 0.0), ("layer 31", 1.0)):
        index = int(np.nanargmin(np.abs(depth_L - depth)))
        for statistic, name in numbers.items():
            text = f"{statistic}, {'first' if depth == 0 else 'last'} layer"
            rows.append(
                Nearness("drift", model, "LLaDA", text, mean(part[name].values[:, index]), known[statistic][layer])
            )
    return rows


def _absorption(model: str, kind: str, part: xr.Dataset) -> list[Nearness]:
    rule = "top(n=1)" if kind == "mdm" else "first"
    if rule not in part["rule"].values:
        return []
    curves = paper.absorption()["mean"]
    ours_L = mean_over(part["absorption"].sel(rule=rule).values, 0)
    depth_L = mean_over(part["depth"].values, 0)
    rows = []
    for name in KINDS[kind]:
        theirs = curves.sel(model=name).dropna("layer")
        ours = resample(ours_L, depth_L, theirs.sizes["layer"])
        about = ("absorption", model, _name(name))
        rows += [
            Nearness(*about, f"absorption by {rule}, mean over layers (%)", float(ours.mean()), float(theirs.mean())),
            Nearness(*about, "correlation of the curves", correlation(ours, theirs.values)),
            Nearness(*about, "mean distance of the curves (points)", float(np.abs(ours - theirs.values).mean()), 0.0),
        ]
    return rows


def _geometry(model: str, kind: str, part: xr.Dataset) -> list[Nearness]:
    if kind != "mdm":
        return []
    known = next(fact.values for fact in facts.facts() if fact.statistic == "share of the angle in the advantage (%)")
    shallow, deep = share_of_half(part["angle_part"].values, part["advantage"].values, part["depth"].values)
    pairs = (("shallow half; layer 11", shallow, known["layer 11"]), ("deep half; layer 28", deep, known["layer 28"]))
    return [
        Nearness("geometry", model, "LLaDA", f"share of the angle (%), {text}", 100 * mean(ours), theirs)
        for text, ours, theirs in pairs
    ]


def _heads(model: str, kind: str, part: xr.Dataset) -> list[Nearness]:
    if kind != "mdm":
        return []
    ours_LH = mean_over(part["hit"].values, 0)
    depth_L = mean_over(part["depth"].values, 0)
    there = np.isfinite(ours_LH).any(axis=1)
    if not there.any():
        return []
    rows = []
    for name in figures.RETRIEVAL_MODELS:
        theirs_LH = paper.retrieval_heads(name)["score"].values
        about = ("heads", model, _name(name))
        rows.append(
            Nearness(
                *about,
                "score-weighted depth",
                depth_of_scores(ours_LH, depth_L),
                definitions.retrieval_depth(theirs_LH),
            )
        )
        if ours_LH.shape == theirs_LH.shape:
            overlap = jaccard(top_heads(ours_LH, STRONGEST), top_heads(theirs_LH, STRONGEST))
            rows.append(Nearness(*about, "rank correlation over heads", spearman(ours_LH.ravel(), theirs_LH.ravel())))
            rows.append(Nearness(*about, "overlap of the strongest 5 % of heads (Jaccard)", overlap))
        else:
            by_layer = resample(mean_over(ours_LH, 1), depth_L, len(theirs_LH))
            value = spearman(by_layer, theirs_LH.mean(axis=1))
            rows.append(Nearness(*about, "rank correlation over layers, by relative depth", value))
    return rows


def _flow(model: str, kind: str, part: xr.Dataset) -> list[Nearness]:
    known = next(fact.values for fact in facts.facts() if fact.statistic == "gold document over the mean of the others")
    follows = mean(part["follows"].values)
    documents = int(np.mean([sum(str(r).startswith("doc") for r in part["region_to"].values)]))
    ratio = NAN
    if np.isfinite(follows) and documents > 1:  # follows = (g − o) / mean over documents
        share = follows / documents
        ratio = (1 + share * (documents - 1)) / (1 - share)
    if kind != "mdm":
        return []
    text = "gold document over another (run: writing rows, per token; paper: rollout, summed)"
    return [Nearness("flow", model, "LLaDA", text, ratio, float(np.mean(list(known.values()))))]


def _knowledge(model: str, kind: str, part: xr.Dataset) -> list[Nearness]:
    average = paper.table1()["average"]
    ours = 100 * mean(part["gain"].values)
    rows = []
    for name in KINDS[kind]:
        gain = float(average.sel(model=name, condition="open-book") - average.sel(model=name, condition="closed-book"))
        rows.append(Nearness("knowledge", model, _name(name), "gain from passages (points)", ours, gain))
    return rows


COMPARISONS = {
    "drift": _drift,
    "absorption": _absorption,
    "geometry": _geometry,
    "heads": _heads,
    "flow": _flow,
    "knowledge": _knowledge,
}


def resample(values_L: Array, depth_L: Array, count: int) -> Array:
    """Values of a curve at `count` evenly spaced depths.

    >>> resample(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 3)
    array([0. , 0.5, 1. ])
    """
    there = np.isfinite(values_L) & np.isfinite(depth_L)
    return np.asarray(np.interp(np.linspace(0, 1, count), depth_L[there], values_L[there]))


def correlation(x: Array, y: Array) -> float:
    """Pearson's correlation; NaN if a side is constant.

    >>> round(correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])), 6)
    1.0
    """
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) and np.ptp(y) else NAN


def _name(model: str) -> str:
    return published.NAMES[model].removesuffix(" (paper)")
