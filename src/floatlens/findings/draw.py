"""Figures of numbers by layer, step or head, and what maps share: hatched anchors, regions and tokens on the axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from floatlens.findings import style
from floatlens.findings.samples import Array, by_model, mean_over, parts_of, samples_per_model, spread
from floatlens.findings.style import FAINT, INK, SEQUENTIAL

AXIS_TOKENS = 60  # up to this many positions, the axis shows the tokens themselves


def attention_map(axes: Axes, values_ST: Array, *, cmap: str = SEQUENTIAL, norm: Normalize | None = None) -> AxesImage:
    """Draw a map with steps as rows and positions as columns; colour is the square root, as attention spans decades."""
    if norm is None:
        norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(values_ST, initial=0.0)), 1e-9))
    image = axes.imshow(np.ma.masked_invalid(values_ST), cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
    axes.autoscale(False)  # marks drawn over the map must not move it
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    return image


def hatch_anchors(axes: Axes, anchors_ST: Array, *, colour: str = "#00a5a5") -> None:
    """Draw a hatched box over each run of steps in which a position is an anchor.

    If columns are too narrow for hatching, only the outline of the box is drawn.
    """
    points = axes.get_position().width * axes.figure.bbox.width / axes.figure.dpi * 72 / anchors_ST.shape[1]
    narrow = points < 4
    pad = 0.6 / points if narrow else 0.0
    boxes = []
    for position in np.flatnonzero(anchors_ST.any(axis=0)):
        padded = np.concatenate([[False], anchors_ST[:, position], [False]])
        starts, ends = np.flatnonzero(~padded[:-1] & padded[1:]), np.flatnonzero(padded[:-1] & ~padded[1:])
        left, width = position - 0.5 - pad, 1.0 + 2 * pad
        boxes += [Rectangle((left, s - 0.5), width, float(e - s)) for s, e in zip(starts, ends, strict=True)]
    look = {"linewidth": 0.5} if narrow else {"linewidth": 0.7, "hatch": "//////"}
    axes.add_collection(PatchCollection(boxes, facecolor="none", edgecolor=colour, zorder=3, **look), autolim=False)


def commit_front(axes: Axes, committed_at: Array, steps: Array) -> None:
    """Mark where and when each position receives its final token; between rows if steps were left out."""
    positions = np.flatnonzero(committed_at >= 0)
    rows = np.interp(committed_at[positions], steps, np.arange(len(steps)))
    look: dict[str, Any] = {"ls": "none", "marker": "o", "ms": 2.2, "mfc": "white", "mec": INK, "mew": 0.5}
    axes.plot(positions, rows, zorder=4, **look)


def mark_regions(axes: Axes, regions: Sequence[Any], shown: slice, gold: Sequence[str] = ()) -> None:
    """Write the names of the regions above the map, with thin lines at their ends; the gold document's name is bold."""
    top = axes.get_xaxis_transform()
    width = shown.stop - shown.start
    for region in regions:
        start, end = max(region.start, shown.start) - shown.start, min(region.end, shown.stop) - shown.start
        if end <= start:
            continue
        axes.plot([start - 0.4, end - 0.6], [1.012, 1.012], transform=top, color=INK, lw=0.9, clip_on=False)
        for edge in (start, end):
            if 0 < edge < width:
                axes.axvline(edge - 0.5, color=FAINT, lw=0.4, ls=":", zorder=2)
        if (end - start) / width * axes.bbox.width / axes.figure.dpi * 72 > 4.4 * len(region.name):
            is_gold = region.name in gold
            text = f"{region.name}*" if is_gold else region.name
            weight = "bold" if is_gold else "normal"
            axes.text(
                (start + end - 1) / 2, 1.025, text, transform=top, ha="center", va="bottom", fontsize=6, weight=weight
            )


def token_axis(axes: Axes, tokens: Sequence[str], first: int = 0, most: int = AXIS_TOKENS) -> None:
    """Show tokens on the axis if there are at most `most`, so that they are readable; otherwise position numbers."""
    if len(tokens) <= min(most, AXIS_TOKENS):
        axes.set_xticks(np.arange(len(tokens)), labels=[plain(t) for t in tokens], rotation=90, fontsize=5.5)
        axes.tick_params(axis="x", length=1.5, pad=1)
    elif first:
        axes.xaxis.set_major_formatter(lambda x, _: f"{int(x) + first}")


def name_on_hover(axes: Axes, values_ST: Array, tokens: Sequence[str], first: int = 0, rows: str = "step") -> None:
    """Show the token and value under the pointer, in a window or a notebook."""

    def describe(x: float, y: float) -> str:
        column, row = round(x), round(y)
        if not (0 <= column < values_ST.shape[1] and 0 <= row < values_ST.shape[0]):
            return ""
        return f"{rows} {row}, position {column + first} {tokens[column]!r}: {values_ST[row, column]:.4g}"

    axes.format_coord = describe  # type: ignore[method-assign]


def band(
    axes: Axes, part: pd.DataFrame, along: str = "layer", scale: float = 1.0, most: float = np.inf, **line: Any
) -> None:
    """Draw a line of the table's `mean` along a column, with its `std` over samples as a band that ends at `most`."""
    x, mean, std = part[along].to_numpy(), scale * part["mean"].to_numpy(), scale * part["std"].to_numpy()
    if len(x) > 16:
        line["markersize"] = 2.0
    axes.plot(x, mean, clip_on=False, **{"zorder": 3, **line})
    if np.nanmax(std, initial=0.0) > 0:
        axes.fill_between(x, mean - std, np.minimum(mean + std, most), color=line.get("color"), alpha=0.16, lw=0)


def plain(token: str) -> str:
    """A token as shown on an axis, with spaces and line ends made visible."""
    text = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")
    text = text.strip(" ") or "␣"
    return text.replace("\n", "⏎")[:14]


def mark_columns(axes: Axes, marked: Array) -> None:
    """Draw small triangles above the positions that are anchors at any step."""
    columns = np.flatnonzero(marked)
    axes.plot(
        columns,
        np.full(len(columns), 1.03),
        ls="none",
        marker="v",
        ms=2.5,
        color="#008080",
        transform=axes.get_xaxis_transform(),
        clip_on=False,
    )


def name_rows(axes: Axes, labels: Sequence[int]) -> None:
    """Label the rows with their own numbers if they are not 0, 1, 2, …, since only some layers may be recorded."""
    if list(labels) != list(range(len(labels))):
        every = max(1, len(labels) // 8)
        axes.set_yticks(range(0, len(labels), every), labels=[str(n) for n in labels[::every]])


# Whole figures: lines by layer or along another dimension (mean ± std over samples), and maps of means


def table_along(measured: xr.Dataset, names: Mapping[str, str], along: str = "layer") -> pd.DataFrame:
    """Return one row per model, point along a dimension and number: mean, std and count over the model's samples."""
    parts = []
    for model, part in parts_of(measured):
        for name in names:
            mean, std, n = spread(part[name].values.astype(float))
            columns = {"model": model, "number": name, along: measured[along].values, "mean": mean, "std": std, "n": n}
            parts.append(pd.DataFrame(columns).loc[n > 0])
    return pd.concat(parts, ignore_index=True)


def lines(
    measured: xr.Dataset,
    names: Mapping[str, str],
    along: str = "layer",
    label: str = "layer",
    *,
    backend: str,
    note: str = "",
    zero: bool = True,
    shares: bool = False,
) -> Figure | pd.DataFrame:
    """Draw one panel per number along a dimension, one line per model; `names` gives each number's label.

    `zero`: the axes begin at 0. `shares`: the numbers lie between 0 and 1, and so do the axes. `note` begins the
    caption, before the anchor rule.
    """
    table = table_along(measured, names, along)
    if backend == "none":
        return table
    looks = style.looks_of(list(dict.fromkeys(measured["model"].values)))
    kept, left_out = style.shown(list(names))
    names = {name: names[name] for name in kept}
    last = table.groupby("model")[along].transform("max")
    if along == "layer" and last.nunique() > 1:  # models of different depth share the axis
        along, label, table = "depth", "relative depth", table.assign(depth=table["layer"] / last.clip(lower=1))
    with style.sheet():
        figure = style.new_figure(2.5, width=min(style.WIDTH, 3.4 * len(names)))
        grid = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, (name, text) in zip(grid, names.items(), strict=True):
            for model, look in looks.items():
                part = table[(table["number"] == name) & (table["model"] == model)]
                if len(part):  # a model may lack a number, for example drift in a model with a cache
                    band(axes, part, along, most=1.0 if shares else np.inf, **look)
            axes.set(xlabel=label, ylabel=text)
            if zero or shares:
                axes.set_ylim(bottom=0, top=1.04 if shares else None)  # room for a marker at 1
            axes.xaxis.set_major_locator(
                MaxNLocator(integer=along in ("layer", "step"), nbins=6 if len(names) < 4 else 4)
            )
        style.legend(figure)
        rule = measured.attrs.get("rule")
        parts = [note, f"{'a' if note else 'A'}nchors by {rule}" if rule else ""]
        style.caption(
            figure,
            f"{'; '.join(filter(None, parts))}; mean ± std over {samples_per_model(measured)} per model.{left_out}",
        )
    return figure


def maps(
    measured: xr.Dataset, names: Mapping[str, str], across: str, label: str, *, note: str, backend: str
) -> Figure | pd.DataFrame:
    """Draw numbers as maps of layers (rows) and steps or heads (columns), mean over samples.

    One panel per model and number; `names` gives the titles if there are several numbers.
    """
    means = {
        f"{model}: {text}" if len(names) > 1 else model: mean_over(
            part[name].transpose("sample", "layer", across).values, 0
        )
        for model, _, part in by_model(measured)
        for name, text in names.items()
    }
    down, columns = measured["layer"].values, measured[across].values
    if backend == "none":
        index = pd.MultiIndex.from_product([down, columns], names=["layer", across])
        frames = [pd.DataFrame({"value": v.ravel()}, index=index).assign(model=title) for title, v in means.items()]
        return pd.concat(frames).reset_index().dropna().reset_index(drop=True)
    shown = {title: values for title, values in means.items() if np.isfinite(values).any()}
    shown = dict(list(shown.items())[: style.PANELS])
    every = np.concatenate([values[np.isfinite(values)] for values in shown.values()]) if shown else np.zeros(1)
    look: dict[str, Any] = {"cmap": SEQUENTIAL, "vmin": float(every.min()), "vmax": float(every.max())}
    with style.sheet():
        figure = style.new_figure(0.5 + 1.75 * max(1, -(-len(shown) // 4)))
        grid = style.panels(figure, len(shown), 4)
        for axes, (title, values) in zip(grid.flat, shown.items(), strict=False):
            there = np.isfinite(values)
            y, x = down[there.any(axis=1)], columns[there.any(axis=0)]
            edges = (x[0] - 0.5, x[-1] + 0.5, y[-1] + 0.5, y[0] - 0.5)
            kept = values[there.any(axis=1)][:, there.any(axis=0)]
            image = axes.imshow(kept, extent=edges, interpolation="nearest", aspect="auto", **look)
            axes.set_title(title, fontsize=7.5)
            axes.set_xlabel(across)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        grid[0, 0].set_ylabel("layer")
        if shown:
            figure.colorbar(image, ax=grid, pad=0.01, aspect=20).set_label(label)
        style.caption(figure, f"{note}.")
    return figure
