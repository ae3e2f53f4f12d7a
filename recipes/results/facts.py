"""Statistics of the paper's own figures, by the same definitions that runs are measured with.

    python -m recipes.results.facts

prints them as the table of `docs/paper-figures.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from floatlens.findings import definitions
from floatlens.paper import figures
from floatlens.stats import NAN, Array, spearman

WHOLE_QUERIES = slice(7, 52)  # rows of the QK panels in which every cell is visible
PAIRS = {"LLaDA, Llama": ("llada", "llama"), "Dream, Qwen": ("dream", "qwen")}


@dataclass(frozen=True)
class PublishedFact:
    """A statistic of a published figure; `values` has one number per panel, model or pair of models."""

    finding: str
    statistic: str
    values: dict[str, float]
    digits: int = 3

    def __str__(self) -> str:
        return "; ".join(f"{name}: {value:.{self.digits}f}" for name, value in self.values.items())


def facts() -> list[PublishedFact]:
    """Every statistic that can be computed from the published figures, in the order of the findings.

    >>> found = {fact.statistic: fact for fact in facts()}
    >>> str(found["turnover per step (1 − Jaccard)"]), str(found["floating"])
    ('layer 0: 0.070; layer 31: 0.129', 'layer 0: 0.345; layer 31: 0.123')
    """
    return [*_drift(), *_layers(), *_absorption(), *_geometry(), *_heads(), *_flow(), *_knowledge()]


def table(found: list[PublishedFact]) -> str:
    """The facts as a Markdown table.

    >>> print(table([PublishedFact("drift", "floating", {"layer 0": 0.345, "layer 31": 0.123})]))
    | finding | statistic | value |
    | --- | --- | --- |
    | drift | floating | layer 0: 0.345; layer 31: 0.123 |
    """
    rows = [("finding", "statistic", "value"), ("---",) * 3, *((f.finding, f.statistic, str(f)) for f in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def received(layer: int, u: float = 0.0) -> Array:
    """Received attention (step, position) of a temporal figure; rows sum to 1, or are NaN if the legend hides a part.

    `u` is the share of attention that is spread evenly, which is not known from the figure; see `figures.temporal`.

    >>> bool(np.isclose(received(0)[31].sum(), 1)), bool(np.isnan(received(0)[1]).all())
    (True, True)
    """
    value_ST = figures.temporal(layer)["value"].values
    value_ST = u / value_ST.shape[1] + (1 - u) * value_ST
    return np.asarray(value_ST / value_ST.sum(axis=1, keepdims=True))


def mass(layer: int, u: float = 0.0) -> Array:
    """Anchor mass `p` (step, position) of a temporal figure, on the cells that the authors hatched.

    >>> mass(31)[31].argmax().item(), mass(31)[31].max().item()
    (17, 1.0)
    """
    found = figures.temporal(layer)
    value_ST = np.nan_to_num(found["value"].values)  # no anchor is drawn near the legend; none is assumed under it
    return definitions.anchor_mass(u / value_ST.shape[1] + (1 - u) * value_ST, found["anchor"].values)


def shift(layer: int, u: float = 0.0) -> float:
    """Shift of a temporal figure, whose first and last step are completely visible.

    >>> round(shift(0), 3)
    0.032
    """
    masked_ST = figures.reveal_order()["masked"].values
    return definitions.shift(received(layer, u)[[0, -1]], masked_ST[[0, -1]], int(masked_ST[0].sum()))


def _drift() -> Iterator[PublishedFact]:
    layers = {f"layer {layer}": layer for layer in figures.TEMPORAL_LAYERS}
    anchors = {name: figures.temporal(layer)["anchor"].values for name, layer in layers.items()}
    a = {name: received(layer) for name, layer in layers.items()}
    p = {name: mass(layer) for name, layer in layers.items()}
    masked_ST = figures.reveal_order()["masked"].values
    answer = int(masked_ST[0].sum())
    ends, masked_ends = {name: rows[[0, -1]] for name, rows in a.items()}, masked_ST[[0, -1]]
    whole = {name: np.where(np.isnan(rows).any(axis=1), np.nan, definitions.centre(rows)) for name, rows in a.items()}
    null = {name: definitions.null_profile(rows, masked_ends) for name, rows in ends.items()}
    visible = slope(definitions.centre(~masked_ST))
    numbers = {
        "anchors per step": {n: x.sum(axis=1).mean() for n, x in anchors.items()},
        "turnover per step (1 − Jaccard)": {n: turnover(x).mean() for n, x in anchors.items()},
        "turnover from first to last step": {n: turnover(x[[0, -1]])[0] for n, x in anchors.items()},
        "dwell (steps)": {n: float(dwell(x)) for n, x in anchors.items()},
        "floating": {n: definitions.floating(x) for n, x in p.items()},
        "renewal": {n: definitions.renewal(np.where(x, np.nan_to_num(a[n]), 0.0)) for n, x in anchors.items()},
        "slope of the centre (positions per step)": {
            **{n: slope(x) for n, x in whole.items()},
            "equal attention on visible positions": visible,
        },
        "movement of the centre (shares of the answer)": {n: definitions.movement(x, answer) for n, x in ends.items()},
        "movement under the null": {n: definitions.movement(x, answer) for n, x in null.items()},
        "shift beyond the null": {n: shift(layer) for n, layer in layers.items()},
    }
    for statistic, values in numbers.items():
        digits = {"anchors per step": 2, "dwell (steps)": 1, "slope of the centre (positions per step)": 2}.get(
            statistic, 3
        )
        yield PublishedFact("drift", statistic, {name: float(value) for name, value in values.items()}, digits)


def _layers() -> Iterator[PublishedFact]:
    between, within = definitions.layer_distance(np.stack([mass(layer) for layer in figures.TEMPORAL_LAYERS], axis=1))
    yield PublishedFact("layers", "distance of anchor mass, layers 0 and 31", {"between": between, "within": within})
    spread = {}
    for layer in figures.TEMPORAL_LAYERS:
        a_ST = received(layer)
        effective = definitions.effective_positions(a_ST[np.isfinite(a_ST).all(axis=1)])
        spread[f"layer {layer}"] = float(effective.mean())
    yield PublishedFact("layers", "effective number of positions (of 52, at least)", spread, digits=1)


def _absorption() -> Iterator[PublishedFact]:
    curves = figures.absorption()
    numbers: dict[str, dict[str, float]] = {"mean over layers (%)": {}, "shallow half (%)": {}, "deep half (%)": {}}
    for model in curves["model"].values:
        curve = curves["mean"].sel(model=model).dropna("layer").values
        half = len(curve) // 2
        for values, part in zip(numbers.values(), (curve, curve[:half], curve[half:]), strict=True):
            values[_name(model)] = float(part.mean())
    for statistic, values in numbers.items():
        yield PublishedFact("absorption", statistic, values, digits=1)


def _geometry() -> Iterator[PublishedFact]:
    shares = {}
    for layer in figures.QK_LAYERS:
        panels = figures.qk(layer).isel(query=WHOLE_QUERIES)
        cos_QT, norm_QT = panels["cos"].values, panels["norm"].values
        split = split_advantage(cos_QT * norm_QT, cos_QT, norm_QT, panels["marked"].values)
        shares[f"layer {layer}"] = split.shares()
    for index, part in enumerate(("angle", "norm")):
        values = {name: 100 * found[index] for name, found in shares.items()}
        yield PublishedFact("geometry", f"share of the {part} in the advantage (%)", values, digits=1)


def _heads() -> Iterator[PublishedFact]:
    scores = {_name(model): figures.retrieval_heads(model)["score"].values for model in figures.RETRIEVAL_MODELS}
    depth = {n: definitions.retrieval_depth(s) for n, s in scores.items()}
    yield PublishedFact("heads", "score-weighted depth (0 first, 1 last layer)", depth)
    yield PublishedFact(
        "heads", "rank correlation of layer and score", {n: depth_correlation(s) for n, s in scores.items()}
    )
    for above in (0.1, 0.3, 0.5):
        count = {n: 100 * float((s > above).mean()) for n, s in scores.items()}
        yield PublishedFact("heads", f"heads above {above} among all (%)", count, digits=0)
        deep = {n: 100 * deep_share(s, above) for n, s in scores.items()}
        yield PublishedFact("heads", f"heads above {above} that lie in the deep half (%)", deep, digits=0)


def _flow() -> Iterator[PublishedFact]:
    apart, ratio = {}, {}
    for gold in figures.GOLD_POSITIONS:
        found = figures.rollout("llada", gold)
        apart[f"gold at {gold}"] = definitions.largest_row_distance(found["value"].values)
        column = found["value"].mean("region")
        others = [f"doc{i}" for i in range(1, 11) if i != gold]
        ratio[f"gold at {gold}"] = float(column.sel(region_to=f"doc{gold}") / column.sel(region_to=others).mean())
    yield PublishedFact("flow", "largest distance between two rows of the rollout", apart, digits=4)
    yield PublishedFact("flow", "gold document over the mean of the others", ratio, digits=2)


def _knowledge() -> Iterator[PublishedFact]:
    average = figures.table1()["average"]
    open_book, closed_book = (average.sel(condition=c) for c in ("open-book", "closed-book"))
    gain = {str(m): float(open_book.sel(model=m) - closed_book.sel(model=m)) for m in average["model"].values}
    yield PublishedFact(
        "knowledge", "gain from passages (points)", {_name(m): value for m, value in gain.items()}, digits=2
    )
    ratio = {name: gain[mdm] / gain[arm] for name, (mdm, arm) in PAIRS.items()}
    yield PublishedFact("knowledge", "gain of the MDM over that of the ARM", ratio, digits=2)
    beyond = {name: gain[mdm] - 2 * gain[arm] for name, (mdm, arm) in PAIRS.items()}
    yield PublishedFact("knowledge", "gain of the MDM minus twice that of the ARM (points)", beyond, digits=2)
    with_passages = {_name(m): float(open_book.sel(model=m)) for m in gain}
    yield PublishedFact("knowledge", "score with passages (%)", with_passages, digits=2)


def _name(model: str) -> str:
    return {"llada": "LLaDA"}.get(str(model), str(model).capitalize())


def slope(series_S: Array) -> float:
    """Least-squares change per step over the steps that have a value.

    >>> slope(np.array([1.0, np.nan, 5.0]))
    2.0
    """
    there = np.isfinite(series_S)
    if there.sum() < 2:
        return NAN
    step = np.arange(len(series_S))[there] - np.arange(len(series_S))[there].mean()
    return float(step @ series_S[there] / (step @ step))


class Split(NamedTuple):
    """The anchors' advantage in score and its parts; they sum to it."""

    advantage: Array
    angle: Array
    norm: Array
    remainder: Array

    def shares(self) -> tuple[float, float, float]:
        """Angle, norm and remainder over the advantage, means over rows; they may exceed 1 or be negative."""
        whole = self.advantage.mean()
        angle, norm, remainder = (float(part.mean() / whole) for part in self[1:])
        return angle, norm, remainder


def split_advantage(score: Array, cos: Array, norm: Array, anchors_T: Array) -> Split:
    """The anchors' advantage in score over the other keys (last axis), split symmetrically into angle and norm.

    With c, m the mean cosine and norm product at the anchors and c', m' elsewhere, angle = (c − c')(m + m')/2 and
    norm = (m − m')(c + c')/2. The remainder is the covariance of the two factors among the keys that were averaged. One row
    per query, or column means. A key that misses one of the three (NaN) is left out of its row.

    >>> cos, norm = np.array([0.6, 0.2, 0.2]), np.array([4.0, 2.0, 2.0])
    >>> split = split_advantage(cos * norm, cos, norm, np.array([True, False, False]))  # 2.4 − 0.4
    >>> [round(float(part), 6) for part in split]
    [2.0, 1.2, 0.8, 0.0]
    """
    known = np.isfinite(score) & np.isfinite(cos) & np.isfinite(norm)

    def mean_of(values: Array, group: Array) -> Array:
        count = group.sum(axis=-1)
        return np.where(count > 0, np.where(group, values, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)

    (s, s_), (c, c_), (m, m_) = (
        (mean_of(values, known & anchors_T), mean_of(values, known & ~anchors_T)) for values in (score, cos, norm)
    )
    angle, length = (c - c_) * (m + m_) / 2, (m - m_) * (c + c_) / 2
    return Split(s - s_, angle, length, s - s_ - angle - length)


# Descriptions of the published figures


def turnover(anchors: Array, exists: Array | None = None) -> Array:
    """Share of anchors replaced from one step (first axis) to the next: 1 − Jaccard, on positions that exist at both.

    A description: it depends on the number of steps, unlike `floating`. NaN where neither step has an anchor.
    """
    both = np.ones_like(anchors[1:]) if exists is None else exists[1:] & exists[:-1]
    before, after = anchors[:-1] & both, anchors[1:] & both
    union = (before | after).sum(axis=-1)
    return np.where(union > 0, 1.0 - (before & after).sum(axis=-1) / np.maximum(union, 1), np.nan)


def dwell(anchors: Array) -> Array:
    """Mean number of steps (first axis) that a position stays an anchor without a break; NaN without anchors."""
    begins = np.concatenate([anchors[:1], anchors[1:] & ~anchors[:-1]])
    cells, runs = anchors.sum(axis=(0, -1)), begins.sum(axis=(0, -1))
    return np.where(runs > 0, cells / np.maximum(runs, 1), np.nan)


def depth_correlation(score_LH: Array) -> float:
    """Rank correlation of a layer's number with its mean score."""
    return spearman(np.arange(len(score_LH)), np.nanmean(score_LH, axis=1))


def deep_share(score_LH: Array, above: float) -> float:
    """Share of the heads with a score above a threshold that lie in the deep half.

    It depends on the threshold, so it is only a description. The middle layer of an odd number belongs to neither half.
    """
    count_L = (score_LH > above).sum(axis=1)
    half = len(count_L) // 2
    total = count_L[:half].sum() + count_L[-half:].sum()
    return float(count_L[-half:].sum() / total) if total else NAN


if __name__ == "__main__":
    print(table(facts()))
