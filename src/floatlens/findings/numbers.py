"""The most common figures: lines by layer or along another dimension (mean ± std over samples), and maps of means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.findings import draw, style
from floatlens.findings.by_model import by_model
from floatlens.findings.samples import mean_over, models_of, samples_per_model, spread


def table_along(measured: xr.Dataset, names: Mapping[str, str], along: str) -> pd.DataFrame:
    """Return one row per model, point along a dimension and number: mean, std and count over the model's samples."""
    parts = []
    for model in models_of(measured):
        rows = measured["model"].values == model
        for name in names:
            mean, std, n = spread(measured[name].values[rows].astype(float))
            columns = {"model": model, "number": name, along: measured[along].values, "mean": mean, "std": std, "n": n}
            parts.append(pd.DataFrame(columns).loc[n > 0])
    return pd.concat(parts, ignore_index=True)


def layer_table(measured: xr.Dataset, names: Mapping[str, str]) -> pd.DataFrame:
    """Return one row per model, layer and number: mean, std and count over the model's samples."""
    return table_along(measured, names, "layer")


def layer_lines(
    measured: xr.Dataset,
    names: Mapping[str, str],
    *,
    backend: str,
    note: str = "",
    zero: bool = True,
    shares: bool = False,
) -> Figure | pd.DataFrame:
    """Draw one panel per number by layer, one line per model; `names` gives each number's label.

    `zero`: the axes begin at 0. `shares`: the numbers lie between 0 and 1, and so do the axes. `note` is the caption; by
    default, the anchor rule.
    """
    return lines(measured, names, "layer", "layer", backend=backend, note=note, zero=zero, shares=shares)


def lines(
    measured: xr.Dataset,
    names: Mapping[str, str],
    along: str,
    label: str,
    *,
    backend: str,
    note: str = "",
    zero: bool = True,
    shares: bool = False,
) -> Figure | pd.DataFrame:
    """Draw one panel per number along a dimension, one line per model; the parameters are those of `layer_lines`."""
    table = table_along(measured, names, along)
    if backend == "none":
        return table
    models = models_of(measured)
    colours, markers = style.colour_of(models), style.marker_of(models)
    with style.sheet():
        figure = style.new_figure(2.5, width=min(style.WIDTH, 3.4 * len(names)))
        grid = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, (name, text) in zip(grid, names.items(), strict=True):
            for model in models:
                part = table[(table["number"] == name) & (table["model"] == model)]
                look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                if len(part):  # a model may lack a number, for example drift in a model with a cache
                    draw.band(axes, part, along, most=1.0 if shares else np.inf, **look)
            axes.set(xlabel=label, ylabel=text)
            if zero or shares:
                axes.set_ylim(bottom=0, top=1.04 if shares else None)  # room for a marker at 1
            axes.xaxis.set_major_locator(MaxNLocator(integer=along == "layer", nbins=6))
        named = {text: handle for axes in grid for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=max(1, len(named)))
        n = samples_per_model(measured)
        sentence = note or f"Anchors by {measured.attrs['rule']}"
        style.caption(figure, f"{sentence}; mean ± std over {n} per model.")
    return figure


def step_maps(measured: xr.Dataset, name: str, label: str, *, note: str, backend: str) -> Figure | pd.DataFrame:
    """Draw a number as a map of layers (rows) and steps (columns), mean over samples, one panel per model that has it."""
    maps = {model: mean_over(part[name].values, 0) for model, _, part in by_model(measured)}
    return _maps(maps, ("step", "layer"), measured, label, note, backend, transposed=True)


def head_maps(measured: xr.Dataset, names: Mapping[str, str], label: str, *, backend: str) -> Figure | pd.DataFrame:
    """Draw numbers as maps of layers (rows) and heads (columns), mean over samples, one panel per model and number."""
    maps = {
        f"{model}: {text}" if len(names) > 1 else model: mean_over(part[name].values, 0)
        for model, _, part in by_model(measured)
        for name, text in names.items()
    }
    return _maps(maps, ("layer", "head"), measured, label, "Mean over samples and steps", backend)


def _maps(
    maps: Mapping[str, np.ndarray[Any, Any]],
    dims: tuple[str, str],
    measured: xr.Dataset,
    label: str,
    note: str,
    backend: str,
    transposed: bool = False,
) -> Figure | pd.DataFrame:
    rows, columns = (measured[dim].values for dim in dims)
    frames = []
    for title, values in maps.items():
        index = pd.MultiIndex.from_product([rows, columns], names=dims)
        frame = pd.DataFrame({"value": values.ravel()}, index=index).reset_index().dropna()
        frames.append(frame.assign(model=title))
    data = pd.concat(frames, ignore_index=True)
    if backend == "none":
        return data
    shown = {title: values for title, values in maps.items() if np.isfinite(values).any()}
    every = np.concatenate([values[np.isfinite(values)] for values in shown.values()]) if shown else np.zeros(1)
    lowest, highest = float(every.min()), float(every.max())
    with style.sheet():
        wide = min(4, max(1, len(shown)))
        figure = style.new_figure(0.5 + 1.75 * max(1, -(-len(shown) // wide)))
        grid = figure.subplots(-(-max(1, len(shown)) // wide), wide, squeeze=False)
        image = None
        for axes, (title, values) in zip(grid.flat, shown.items(), strict=False):
            there = np.isfinite(values)
            kept = [labels[there.any(axis=1 - axis)] for axis, labels in enumerate((rows, columns))]
            values = values[there.any(axis=1)][:, there.any(axis=0)]
            down, across = kept[::-1] if transposed else kept
            values = values.T if transposed else values
            look: dict[str, Any] = {"cmap": style.SEQUENTIAL, "vmin": lowest, "vmax": highest, "aspect": "auto"}
            edges = (across[0] - 0.5, across[-1] + 0.5, down[-1] + 0.5, down[0] - 0.5)
            image = axes.imshow(values, extent=edges, interpolation="nearest", **look)
            axes.set_title(title, fontsize=7.5)
            axes.set_xlabel(dims[0] if transposed else dims[1])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_axis_off()
        grid[0, 0].set_ylabel(dims[1] if transposed else dims[0])
        if image is not None:
            figure.colorbar(image, ax=grid, pad=0.01, aspect=20).set_label(label)
        style.caption(figure, f"{note}.")
    return figure
