"""The kinds of figures: curves, maps, points with intervals, and the parts of a map of one trace."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from floatlens.findings import style
from floatlens.findings.samples import parts_of, samples_per_model, spread
from floatlens.findings.style import FAINT, INK, SEQUENTIAL
from floatlens.stats import Array

AXIS_TOKENS = 60  # up to this many positions, the axis shows the tokens themselves
DASHES, DASH_NAMES = ("-", "--", ":", "-.", (0, (1, 3))), ("Dashed", "Dotted", "Dash-dotted", "Sparsely dotted")


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


def token_axis(axes: Axes, tokens: Sequence[str], first: int, most: int) -> None:
    """Show tokens on the axis if there are at most `most`, so that they are readable; otherwise position numbers."""
    if len(tokens) <= min(most, AXIS_TOKENS):
        axes.set_xticks(np.arange(len(tokens)), labels=[plain(t) for t in tokens], rotation=90, fontsize=5.5)
        axes.tick_params(axis="x", length=1.5, pad=1)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=min(8, most // 4), integer=True))
        axes.xaxis.set_major_formatter(lambda x, _: f"{int(x) + first}")


def plain(token: str) -> str:
    """A token as shown on an axis, with spaces and line ends made visible."""
    text = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")
    text = text.strip(" ") or "␣"
    return text.replace("\n", "⏎")[:14]


def name_ticks(axis: Axis, labels: Sequence[Any]) -> None:
    """Label rows or columns with their own names, unless they are 0, 1, 2, …: only some layers may be recorded."""
    if list(labels) != list(range(len(labels))):
        every = 1 if isinstance(labels[0], str) else max(1, len(labels) // 8)
        axis.set_ticks(range(0, len(labels), every), labels=[str(name) for name in labels[::every]])
        axis.set_tick_params(labelsize=5.5 if every == 1 and len(labels) > 9 else 7)


# Whole figures from a table: curves, maps, and points with intervals. Each has at most `style.PANELS` panels.


def table_of(measured: xr.Dataset, names: Iterable[str], *along: str) -> pd.DataFrame:
    """Return one row per model, number and place along some dimensions: mean, std and count over the model's samples."""
    parts = []
    index = pd.MultiIndex.from_product([measured[name].values for name in along], names=along)
    for model, part in parts_of(measured):
        for name in names:
            mean, std, n = (
                each.ravel() for each in spread(part[name].transpose("sample", *along).values.astype(float))
            )
            parts.append(pd.DataFrame({"model": model, "number": name, "mean": mean, "std": std, "n": n}, index))
    table = pd.concat(parts).query("n > 0").reset_index()
    return table[["model", "number", *along, "mean", "std", "n"]]


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
    same_scale: bool = False,
) -> Figure | pd.DataFrame:
    """Draw one panel per number along a dimension, one line per model: mean ± std over samples.

    `names` gives each number's label. `zero`: the axes begin at 0. `shares`: the numbers lie between 0 and 1, and so do
    the axes. `same_scale`: the numbers are compared, and all panels have one axis. `note` begins the caption, before the
    anchor rule.
    """
    table = table_of(measured, names, along)
    if backend == "none":
        return table
    if along == "layer" and "depth" in measured:
        depths = table_of(measured, ["depth"], "layer").set_index(["model", "layer"])["mean"].round(6)
        table = table.join(depths.rename("depth"), on=["model", "layer"])
    rule = measured.attrs.get("rule")
    parts = [note, f"{'a' if note else 'A'}nchors by {rule}" if rule else ""]
    note = f"{'; '.join(filter(None, parts))}; mean ± std over {samples_per_model(measured)} per model."
    ylim = (0 if zero or shares else None, 1.04 if shares else None)  # room for a marker at 1
    banded = with_band(table, 1.0 if shares else np.inf)
    return curves(banded, along, "number", names, xlabel=label, ylim=ylim, note=note, same_scale=same_scale or shares)


def with_band(table: pd.DataFrame, most: float = np.inf) -> pd.DataFrame:
    """The table with the ends of a band of one standard deviation, which ends at `most`."""
    low, high = table["mean"] - table["std"], table["mean"] + table["std"]
    return table.assign(low=low, high=high.clip(upper=most))


def curves(
    table: pd.DataFrame,
    x: str,
    by: str,
    panels: Mapping[str, str],
    *,
    xlabel: str | Mapping[str, str],
    ylabel: str = "",
    ylim: tuple[float | None, float | None] = (None, None),
    note: str,
    same_scale: bool = False,
) -> Figure:
    """Draw one panel per value of the column `by`: `mean` over `x` with a band from `low` to `high`, one line per model.

    `panels` has the panels' titles, or, without a common `ylabel`, the labels of their axes. Lines of a model that differ
    in the column `variant` are dashed differently. Where some `x` is unknown, all places are points named by `level`.
    """
    looks = style.looks_of(list(dict.fromkeys(table["model"])))
    kept, left_out = style.shown(list(panels))
    table = table if "variant" in table else table.assign(variant="")
    variants = list(dict.fromkeys(table["variant"]))
    if x == "layer" and "depth" in table and table.groupby("layer")["depth"].nunique().max() > 1:
        x, xlabel = "depth", "relative depth"  # models of different depth share the axis
    with style.sheet():
        figure = style.new_figure(2.6, width=max(3.4, min(style.WIDTH, 3.4 * len(kept))))
        grid = figure.subplots(1, max(1, len(kept)), squeeze=False, sharey=same_scale or bool(ylabel))[0]
        for axes, name in zip(grid, kept, strict=False):
            part = table[table[by] == name]
            levels = list(dict.fromkeys(part["level"])) if part[x].isna().any() else []
            if levels:
                part = part.assign(**{x: [float(levels.index(level)) for level in part["level"]]})
            for model, variant in dict.fromkeys(zip(part["model"], part["variant"], strict=True)):
                one = part[(part["model"] == model) & (part["variant"] == variant)].sort_values(x)
                look = {**looks[model], "ls": DASHES[variants.index(variant) % len(DASHES)]}
                look |= {"label": "_"} if variant else {}
                look |= {"ls": "--", "marker": "", "alpha": 0.7, "zorder": 1} if model.endswith("(paper)") else {}
                _curve(axes, one[x], one, look, named=bool(levels))
            below = xlabel if isinstance(xlabel, str) else xlabel[name]
            axes.set(xlabel=textwrap.fill(below, 96 // len(kept)))
            axes.set(**{"title" if ylabel else "ylabel": panels[name]})
            whole = x in ("layer", "step") or bool((part[x] % 1 == 0).all())
            axes.xaxis.set_major_locator(MaxNLocator(integer=whole, nbins=6 if len(kept) < 4 else 4))
            if levels:
                axes.set_xticks(range(len(levels)), levels)
                if sum(map(len, levels)) > 80 // len(kept):  # too long to stand side by side
                    axes.tick_params(axis="x", rotation=40)
        for axes in grid:  # once all are drawn: it ends the search for limits, and they may be shared
            axes.set_ylim(*ylim)
        if ylabel:
            grid[0].set_ylabel(ylabel)
        if kept:
            style.legend(figure)
        dashed = [f" {word}: {variant}." for word, variant in zip(DASH_NAMES, variants[1:], strict=False)]
        style.caption(figure, f"{note}{''.join(dashed)}{left_out}")
    return figure


def _curve(axes: Axes, x: Any, one: pd.DataFrame, look: dict[str, Any], *, named: bool) -> None:
    """Draw a line with its band, or points with their intervals if the places are names."""
    mean, low, high = (one[name].to_numpy(float) for name in ("mean", "low", "high"))
    if named:
        axes.errorbar(x, mean, yerr=np.abs([mean - low, high - mean]), lw=0.9, **{**look, "ls": "none"})
        return
    if len(x) > 16:
        look["markersize"] = 2.0
    axes.plot(x, mean, clip_on=False, **{"zorder": 3, **look})
    if np.nanmax(high - low, initial=0.0) > 0:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.16, lw=0)


def points(table: pd.DataFrame, row: str, by: str, *, xlabel: str, note: str) -> Figure:
    """Draw one panel per value of the column `by`: `mean` with its interval in rows named by the column `row`.

    Models have different colours.
    """
    looks = style.looks_of(list(dict.fromkeys(table["model"])))
    panels, left_out = style.shown(list(dict.fromkeys(table[by])))
    rows = list(dict.fromkeys(table[row]))
    with style.sheet():
        figure = style.new_figure(1.1 + len(rows) * max(0.22, 0.09 * len(looks)))
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, panel in zip(grid, panels, strict=True):
            for index, (model, look) in enumerate(looks.items()):
                part = table[(table[by] == panel) & (table["model"] == model)]
                y = np.array([rows.index(name) for name in part[row]]) + 0.7 * ((index + 0.5) / len(looks) - 0.5)
                value, low, high = (part[name].to_numpy(float) for name in ("mean", "low", "high"))
                axes.errorbar(value, y, xerr=np.abs([value - low, high - value]), ls="none", lw=0.9, ms=3.5, **look)
            axes.axvline(0, color="#555555", lw=0.6)
            for index in range(1, len(rows), 2):
                axes.axhspan(index - 0.5, index + 0.5, color="#f3f3f3", lw=0, zorder=0)
            axes.set_yticks(range(len(rows)), rows)
            axes.set(title=str(panel), xlabel=xlabel, ylim=(len(rows) - 0.5, -0.5))
        style.legend(figure)
        style.caption(figure, f"{note}{left_out}")
    return figure


def layer_maps(
    measured: xr.Dataset,
    names: Mapping[str, str],
    across: str,
    label: str,
    *,
    backend: str,
    note: str,
    beside: pd.DataFrame | None = None,
) -> Figure | pd.DataFrame:
    """Draw numbers as maps of layers (rows) and steps or heads (columns), mean over samples; `names` has the titles.

    All models of one number come before those of the next. `beside` are further rows, such as the published ones.
    """
    table = pd.concat([table_of(measured, names, "layer", across), beside], ignore_index=True)
    if backend == "none":
        return table
    texts = {name: text and f": {text}" for name, text in names.items()}
    panels = table["model"].map(style.short) + table["number"].map(texts)
    order = pd.Categorical(table["number"], list(names))
    shown = table.assign(panel=panels, number=order).sort_values("number", kind="stable")
    return maps(shown, "layer", across, label=label, note=note)


def maps(
    table: pd.DataFrame, down: str, across: str, *, value: str = "mean", label: str, note: str, norm: Any = None
) -> Figure:
    """Draw one map per value of the column `panel`: `value` by two columns of the table, all on one colour scale."""
    panels, left_out = style.shown(list(dict.fromkeys(table["panel"])))
    seen = table.loc[table["panel"].isin(panels), value]
    norm = norm or Normalize(float(seen.min()), float(seen.max()))
    named = len({name for name in table[down] if isinstance(name, str)})  # rows with a label each
    with style.sheet():
        figure = style.new_figure(max(2.5, 1.5 + 0.12 * named), width=max(3.4, min(style.WIDTH, 2.5 * len(panels))))
        grid = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
        for axes, panel in zip(grid, panels, strict=False):
            part = table[table["panel"] == panel]
            rows, columns = list(dict.fromkeys(part[down])), list(dict.fromkeys(part[across]))
            values = part.pivot(index=down, columns=across, values=value).reindex(index=rows, columns=columns)
            image = attention_map(axes, values.to_numpy(float), norm=norm)
            name_ticks(axes.yaxis, rows)
            name_ticks(axes.xaxis, columns)
            if isinstance(columns[0], str):
                axes.tick_params(axis="x", rotation=90)
            axes.set_title(panel, fontsize=7.5)
            axes.set_xlabel(across.replace("_", " "))
        grid[0].set_ylabel(down)
        if panels:  # a model with a cache may have no numbers
            figure.colorbar(image, ax=grid, pad=0.01, aspect=20).set_label(label)
        style.caption(figure, f"{note}{left_out}")
    return figure
