"""Numbers by layer, mean ± std over samples, one line per model: the most common figure, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.findings import draw, style
from floatlens.findings.samples import models_of, spread


def layer_table(measured: xr.Dataset, names: Mapping[str, str]) -> pd.DataFrame:
    """Return one row per model, layer and number: mean, std and count over the model's samples."""
    parts = []
    for model in models_of(measured):
        rows = measured["model"].values == model
        for name in names:
            mean, std, n = spread(measured[name].values[rows].astype(float))
            parts.append(
                pd.DataFrame(
                    {
                        "model": model,
                        "number": name,
                        "layer": measured["layer"].values,
                        "mean": mean,
                        "std": std,
                        "n": n,
                    }
                ).loc[n > 0]
            )
    return pd.concat(parts, ignore_index=True)


def layer_lines(measured: xr.Dataset, names: Mapping[str, str], *, backend: str) -> Figure | pd.DataFrame:
    """Draw one panel per number, one line per model; `names` gives each number's label."""
    table = layer_table(measured, names)
    if backend == "none":
        return table
    models = models_of(measured)
    colours, markers = style.colour_of(models), style.marker_of(models)
    with style.sheet():
        figure = style.new_figure(2.35)
        grid = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, (name, label) in zip(grid, names.items(), strict=True):
            for model in models:
                part = table[(table["number"] == name) & (table["model"] == model)]
                look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                draw.band(axes, part, **look)
            axes.set(xlabel="layer", ylabel=label)
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
        n = int(table["n"].max())
        style.caption(
            figure, f"Anchors by {measured.attrs['rule']}; mean ± std over {n} sample{'s' * (n != 1)} of each model."
        )
    return figure
