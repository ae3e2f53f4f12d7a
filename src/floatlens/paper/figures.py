"""The numbers shown in the paper's figures, which `figure … --paper` draws beside a run's own.

The raw attention behind arXiv 2601.07894 is not published; its pictures are (github.com/NEUIR/Attention-Floating, commit
7d6be0a). Everything here was measured from their pixels; no model was run. Each function returns one figure as an xarray
Dataset with the uncertainty of each cell (`low`, `high`) if it differs between cells, and with figure, method and
uncertainty in its attributes. Models are named as in the figures (llama, qwen, llada, dream); the exact checkpoints,
the prompts and the numbers of samples are not published.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from floatlens.errors import FloatLensError

SOURCE = "arXiv 2601.07894, pictures of github.com/NEUIR/Attention-Floating at 7d6be0a, read from pixels"
PROMPT_LENGTH = 20  # of the one sequence in the temporal figures; 32 generated positions follow
MARKED_KEY = 45  # in the QK panels of both layers
TEMPORAL_LAYERS = (0, 31)
QK_LAYERS = (11, 28)
RETRIEVAL_MODELS = ("llada", "dream")
ROLLOUT_MODELS = ("llada", "llama")
GOLD_POSITIONS = (1, 5, 10)


def absorption() -> xr.Dataset:
    """Percent of attention on the anchors, per model and layer: `mean`, `low` and `high` (one standard deviation).

    `uncertain` marks values under the legend or another model's marker. Layers that a model does not have are NaN.

    >>> from floatlens import paper
    >>> found = paper.absorption()
    >>> found["mean"].sel(model="llama").mean().round(1).item(), found["mean"].sel(model="llada").mean().round(1).item()
    (74.5, 18.4)
    """
    table, attributes = _read("absorption")
    found = table.assign(uncertain=table["uncertain"].fillna("")).set_index(["model", "layer"]).to_xarray()
    found["uncertain"] = found["uncertain"].fillna("")
    return found.sel(model=list(dict.fromkeys(table["model"]))).assign_attrs(attributes)


def temporal(layer: int = 0) -> xr.Dataset:
    """Received attention of LLaDA over 32 steps and 52 positions at layer 0 or 31: `value`, `low`, `high`, `anchor`.

    `anchor` marks the cells that the authors hatched. 63 cells (steps 1 to 3, positions 30 to 50) lie under the legend: NaN,
    and no anchor. No colour bar is drawn, so the value of the palest colour is unknown and taken as 0: if it is u/52, the
    true value is u/52 + (1 − u)·value. Anchors do not depend on u.

    >>> from floatlens import paper
    >>> found = paper.temporal(layer=0)
    >>> [np.flatnonzero(found["anchor"].sel(step=step)).tolist() for step in (0, 31)]
    [[3, 17], [45, 51]]
    """
    _check("temporal figure of layer", layer, TEMPORAL_LAYERS)
    table, attributes = _read(f"temporal_llada_layer{layer}", index="step")
    hatched = table.pop("anchors").astype(str)
    half_steps = table.to_numpy(float)
    anchor = np.zeros(half_steps.shape, bool)
    for step, positions in enumerate(hatched):
        anchor[step, [int(p) for p in positions.split()]] = True
    width = np.where(half_steps % 2, 1, 2)  # an even number lies between two colours that look the same
    whole = np.isfinite(half_steps).all(axis=1)
    unit = half_steps[whole].sum(axis=1).mean()  # column means of attention sum to 1 at every step
    cells = {"value": half_steps, "low": half_steps - width, "high": half_steps + width}
    dims = ("step", "position")
    return xr.Dataset(
        {**{name: (dims, numbers / unit) for name, numbers in cells.items()}, "anchor": (dims, anchor)},
        coords={"step": np.arange(len(table)), "position": np.arange(table.shape[1])},
        attrs={**attributes, "model": "llada", "layer": layer, "prompt_length": PROMPT_LENGTH},
    )


def reveal_order() -> xr.Dataset:
    """When each position of the temporal figures was revealed: `revealed_at`, `certain`, and `masked` (step, position).

    `revealed_at` is the first step that sees the token (0 for the prompt, 32 if still masked at the last drawn step), one
    more than a trace's `committed_at`.

    >>> from floatlens import paper
    >>> paper.reveal_order()["revealed_at"].sel(position=[20, 23, 21, 22]).values.tolist()
    [1, 2, 3, 4]
    """
    table, attributes = _read("reveal_order_llada", index="position")
    positions = np.arange(table.index.max() + 1)
    revealed_at = table["first_step_revealed"].reindex(positions, fill_value=0).to_numpy()
    certain = table["certain"].reindex(positions, fill_value=1).to_numpy(bool)
    steps = np.arange(revealed_at.max())
    return xr.Dataset(
        {
            "revealed_at": ("position", revealed_at),
            "certain": ("position", certain),
            "masked": (("step", "position"), steps[:, None] < revealed_at),
        },
        coords={"step": steps, "position": positions},
        attrs={**attributes, "model": "llada", "prompt_length": PROMPT_LENGTH},
    )


def retrieval_heads(model: str = "llada") -> xr.Dataset:
    """Retrieval score of every head of LLaDA or Dream, 0 to 1: `score`, `low`, `high` (layer, head).

    >>> from floatlens import paper
    >>> found = paper.retrieval_heads("llada")
    >>> dict(found.sizes), int((found["score"] > 0.5).sum())
    ({'layer': 32, 'head': 32}, 204)
    """
    _check("retrieval figure of model", model, RETRIEVAL_MODELS)
    table, attributes = _read(f"retrieval_heads_{model}", index="layer")
    colour = table.to_numpy(float)
    dims = ("layer", "head")
    return xr.Dataset(
        {name: (dims, (colour + inside) / 256) for name, inside in (("score", 0.5), ("low", 0.0), ("high", 1.0))},
        coords={"layer": np.arange(len(table)), "head": np.arange(table.shape[1])},
        attrs={**attributes, "model": model},
    )


def qk(layer: int = 11) -> xr.Dataset:
    """The QK panels of LLaDA at layer 11 or 28: `score`, `cos`, `norm`, `norm_fitted` (query, key), and `marked` (key).

    Cells under the legend (queries 0 to 6) and under the marker are NaN. `norm_fitted` is complete: the norm product is a
    query's factor times a key's, fitted to the visible cells.

    >>> from floatlens import paper
    >>> found = paper.qk(layer=11).isel(query=slice(7, 52))
    >>> int(found["score"].mean("query").idxmax()), np.flatnonzero(found["marked"]).tolist()
    (45, [45])
    """
    _check("QK figure of layer", layer, QK_LAYERS)
    table, attributes = _read(f"qk_llada_layer{layer}")
    rows = {str(panel): part.iloc[:, 2:].to_numpy(float) for panel, part in table.groupby("panel")}
    fitted = np.outer(rows["query factor"], rows["key factor"])
    dims, keys = ("query", "key"), np.arange(fitted.shape[1])
    return xr.Dataset(
        {
            **{name: (dims, rows[name]) for name in ("score", "cos", "norm")},
            "norm_fitted": (dims, fitted),
            "marked": ("key", keys == MARKED_KEY),
        },
        coords={"query": np.arange(len(fitted)), "key": keys},
        attrs={**attributes, "model": "llada", "layer": layer},
    )


def rollout(model: str = "llada", gold: int | None = None) -> xr.Dataset:
    """Region rollout of LLaDA with the gold document at 1 (default), 5 or 10, or of Llama: `value`, `low`, `high`.

    Regions are named as in a trace (`bos`, `query`, `doc1` … `doc10`, `answer`); the attribute `gold` names the gold one.
    In Llama's picture, one for all placements, only two colours occur: use `low` and `high` there.

    >>> from floatlens import paper
    >>> found = paper.rollout("llada", gold=5)
    >>> column = found["value"].mean("region")
    >>> column.sel(region_to=found.attrs["gold"]).round(4).item(), column.sel(region_to="bos").round(4).item()
    (0.1394, 0.0007)
    """
    _check("rollout figure of model", model, ROLLOUT_MODELS)
    if model == "llama" and gold is not None:
        raise FloatLensError(f"Llama's rollout is one picture for all placements of the gold; leave out gold={gold}")
    position = 10 if model == "llama" else 1 if gold is None else gold
    _check("rollout figure of LLaDA with gold at", position, GOLD_POSITIONS)
    table, attributes = _read("rollout_llama" if model == "llama" else f"rollout_llada_gold{position}")
    for side in ("region_from", "region_to"):
        table[side] = table[side].str.lower().replace("gold", f"doc{position}")
    order = list(dict.fromkeys(table["region_to"]))
    found = table.rename(columns={"region_from": "region"}).set_index(["region", "region_to"]).to_xarray()
    return found.sel(region=order, region_to=order).assign_attrs(
        {**attributes, "model": model, "gold": f"doc{position}"}
    )


def table1() -> xr.Dataset:
    """Table 1: `score` (model, condition, dataset, metric) in percent, and the printed `average` (model, condition).

    Conditions are named as in `answers.parquet`: `closed-book` (without passages) and `open-book` (with retrieved ones).

    >>> from floatlens import paper
    >>> average = paper.table1()["average"]
    >>> gain = average.sel(condition="open-book") - average.sel(condition="closed-book")
    >>> {str(model): round(float(gain.sel(model=model)), 2) for model in gain["model"].values}
    {'llama': 7.36, 'qwen': 9.65, 'dream': 13.23, 'llada': 25.68}
    """
    table, attributes = _read("table1")
    table["condition"] = table.pop("rag").map({0: "closed-book", 1: "open-book"})
    table["metric"] = table["metric"].replace("acc", "accuracy")
    whole = table["dataset"] == "all"
    score = table[~whole].set_index(["model", "condition", "dataset", "metric"])["value"].to_xarray()
    average = table[whole].set_index(["model", "condition"])["value"].to_xarray()
    order = {str(name): list(dict.fromkeys(table[~whole][name])) for name in score.dims}
    found = xr.Dataset({"score": score, "average": average}).sel(order)
    return found.assign_attrs(attributes)


def _read(name: str, index: str | None = None) -> tuple[pd.DataFrame, dict[str, str]]:
    """Read one file of `data/`: its table, and the metadata in lines that start with #."""
    path = files("floatlens.paper") / "data" / f"{name}.csv"
    with path.open(encoding="utf-8") as lines:
        about = dict(line[1:].strip().split(": ", 1) for line in lines if line.startswith("#"))
    with path.open(encoding="utf-8") as text:
        table = pd.read_csv(text, comment="#", index_col=index)
    return table, {"source": SOURCE, **about}


def _check(what: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise FloatLensError(f"there is no {what} {value!r} in the paper; use one of {', '.join(map(str, known))}")
