"""The figures of docs/results.md, from the tables of the plan. A figure whose table is missing is not drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from floatlens.findings import style
from floatlens.stats import interval_of_mean
from recipes.results import nulls
from recipes.results.switch import column, read_tables

MODELS = {
    "causal-next": ("#0072B2", "o", "next token, causal mask"),
    "causal-masked": ("#009E73", "s", "hidden tokens, causal mask"),
    "open-masked": ("#D55E00", "^", "hidden tokens, no mask"),
}
CHANGES = {
    "mask-anchors": ("#D55E00", "s", "anchors masked"),
    "move-anchors": ("#CC79A7", "D", "anchors moved by 8"),
    "pin-anchors": ("#0072B2", "o", "anchors pinned"),
    "add-sink": ("#009E73", "^", "sink added (score 0, 4)"),
    "random": ("#8a8a8a", ".", "1 to 128 random positions masked"),
}
NULLS = {
    "measured": ("#D55E00", "^", "measured"),
    "reveal": ("#0072B2", "o", "reveal null"),
    "redrawn": ("#8a8a8a", "s", "weights redrawn"),
}
WIDTH, COLOURS = 1400, 256  # of a picture: pixels across, and colours; keeps files small


def figures() -> dict[str, Callable[[Path], Figure | None]]:
    """The figures by name, in the order of the page."""
    return {
        "switch": switch,
        "objective": objective,
        "statistics": statistics,
        "nulls": null_figure,
        "cost": cost,
    }


def draw(tables: Path, name: str, path: Path) -> bool:
    """Draw a figure into a small PNG; False if it has no data."""
    with style.sheet():
        figure = figures()[name](tables)
        if figure is None:
            return False
        figure.savefig(path, dpi=200, metadata={"Software": None})
    shrink(path, path)
    return True


def shrink(source: Path, target: Path) -> None:
    """Write a picture of at most `WIDTH` pixels across with few colours."""
    with Image.open(source) as picture:
        small = picture.convert("RGB")
        if small.width > WIDTH:
            small = small.resize((WIDTH, round(small.height * WIDTH / small.width)), Image.Resampling.LANCZOS)
        small = small.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


def read(tables: Path, name: str) -> pd.DataFrame | None:
    path = tables / f"{name}.parquet"
    return pd.read_parquet(path) if path.exists() else None


def switch(tables: Path) -> Figure | None:
    """The same text without punctuation, and with one candidate token in it: attention on the prompt, step by step."""
    table, bare = read(tables, "maps-open-masked-0"), read(tables, "bare-open-masked-0")
    if table is None or bare is None:
        return None
    text, at = table["text"].iloc[0], int(table["inserted"].iloc[0])
    figure = style.new_figure(2.5)
    titles = {"bare": "No punctuation: anchors move", "bare candidate": "One comma: they stand still"}
    for axes, (condition, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        shown = np.stack(table[table["condition"] == condition].sort_values("step")["attention"])
        image = axes.imshow(np.sqrt(shown), aspect="auto", cmap=style.SEQUENTIAL, vmin=0, vmax=np.sqrt(0.6))
        floating = column(bare, condition, "floating")[text]
        axes.set_title(f"{title} (floating {floating:.2f})")
        axes.set_xlabel("position in the prompt")
        if condition != "bare":
            axes.annotate("the comma", (at + 0.6, 11.2), (at + 8, 11.2), va="center", arrowprops={"arrowstyle": "->"})
    figure.axes[0].set_ylabel("window of 8 written tokens")
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.9, ticks=np.sqrt([0, 0.05, 0.2, 0.4, 0.6]))
    bar.ax.set_yticklabels(["0", "5 %", "20 %", "40 %", "60 %"])
    return figure


def objective(tables: Path) -> Figure | None:
    """First-token share and strongest key by layer, for objective × mask; the seeds as two lines."""
    figure = style.new_figure(2.6)
    left, right = figure.subplots(1, 2, sharex=True)
    for seed, line in ((0, "-"), (1, ":")):
        for name, table in read_tables(tables, seed).items():
            if name not in MODELS:
                continue
            colour, marker, label = MODELS[name]
            rows = table[table["condition"] == "as is"]
            for axes, values in ((left, "first_by_layer"), (right, "share_by_layer")):
                mean_L = np.stack(rows[values]).mean(axis=0)
                axes.plot(mean_L, line, color=colour, marker=marker, markevery=3, label=f"{label}, seed {seed}")
    left.set_title("Only a causal mask keeps the first-token sink")
    left.set_ylabel("attention on the first token,\nbeyond an even share")
    right.set_title("Without it, another key takes over")
    right.set_ylabel("attention on\nthe strongest key")
    for axes in (left, right):
        axes.set_ylim(-0.05, 0.85)
        axes.set_xlabel("layer")
    style.legend(figure, columns=3)
    return figure


def statistics(tables: Path) -> Figure | None:
    """Movement by four statistics, for two texts and two models."""
    found = {name: read(tables, f"statistics-{name}-0") for name in ("open-masked", "causal-masked")}
    if any(table is None for table in found.values()):
        return None
    shown = {"all rows": "all rows", "last row": "last written row", "window": "window", "moved": "moved attention"}
    figure = style.new_figure(2.4)
    panels = figure.subplots(1, len(shown), sharey=True)
    for axes, (statistic, title) in zip(panels, shown.items(), strict=True):
        for shift, (name, table) in zip((-0.12, 0.12), found.items(), strict=True):
            assert table is not None
            colour, marker, label = MODELS[name]
            for x, condition in enumerate(("as is", "out")):
                points(axes, x + shift, column(table, condition, statistic), colour, marker, label if x == 0 else None)
        axes.set_title(title)
        axes.set_xticks((0, 1), ("as it is", "commas out"))
        axes.set_xlim(-0.5, 1.5)
    panels[0].set_ylabel("distance between two steps")
    style.legend(figure)
    return figure


def points(axes: object, x: float, values: pd.Series, colour: str, marker: str, label: str | None) -> None:
    """One point per text, and the mean with its interval."""
    there = values.to_numpy(float)[np.isfinite(values.to_numpy(float))]
    mean, (low, high) = interval_of_mean(there)
    axes.plot(np.full(len(there), x), there, ".", color=colour, alpha=0.25, markeredgewidth=0)  # type: ignore[attr-defined]
    axes.errorbar(  # type: ignore[attr-defined]
        x, mean, yerr=[[max(mean - low, 0)], [max(high - mean, 0)]], color=colour, marker=marker, capsize=2, label=label
    )


def read_nulls(tables: Path) -> pd.DataFrame:
    """Floating over all rows and of the nulls: LLaDA's published maps, and every model that was measured."""
    paths = sorted(tables.glob("nulls-*.parquet"))
    return pd.concat([nulls.published(), *(pd.read_parquet(path) for path in paths)], ignore_index=True)


def null_figure(tables: Path) -> Figure | None:
    """Floating over all rows beside both nulls, mean over layers."""
    table = read_nulls(tables)
    models = list(table["model"].unique())
    figure = style.new_figure(2.3)
    axes = figure.subplots()
    for shift, (what, (colour, marker, label)) in zip((-0.15, 0, 0.15), NULLS.items(), strict=True):
        part = table[table["what"] == what].groupby("model", sort=False)["floating"].mean()
        axes.plot(
            [models.index(model) + shift for model in part.index], part, marker, color=colour, label=label, markersize=6
        )
    axes.set_xticks(range(len(models)), models)
    axes.set_xlim(-0.5, len(models) - 0.5)
    axes.set_ylim(-0.02, None)
    axes.set_ylabel("floating, all rows")
    style.legend(figure)
    return figure


def costs(tables: Path) -> pd.DataFrame | None:
    """Nats lost and attention moved by text, condition and change."""
    table = read(tables, "interventions-smollm2-mdm")
    if table is None:
        return None
    plain = table[table["change"] == "plain"].set_index(["text", "condition"])["nats"]
    changed = table[table["change"] != "plain"].copy()
    changed["lost"] = (
        changed["nats"] - plain.loc[list(zip(changed["text"], changed["condition"], strict=True))].to_numpy()
    )
    return changed


def control(table: pd.DataFrame, kind: str, condition: str) -> pd.DataFrame:
    """For each text, the random mask that moves attention most nearly as much as a kind of change does."""
    part = table[table["condition"] == condition]
    random, goal = part[part["change"].str.startswith("random")], part[part["change"].str.startswith(kind)]
    apart = (random["moved"] - random["text"].map(goal.groupby("text")["moved"].mean())).abs()
    return random.loc[apart.groupby(random["text"]).idxmin()]


def cost(tables: Path) -> Figure | None:
    """Nats lost over attention moved, by intervention; random masks as the curve to compare with."""
    table = costs(tables)
    if table is None:
        return None
    figure = style.new_figure(2.6)
    titles: Mapping[str, str] = {"as is": "Text as it is", "out": "Commas taken out"}
    for axes, (condition, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        part = table[table["condition"] == condition]
        for kind, (colour, marker, label) in CHANGES.items():
            rows = part[part["change"].str.startswith(kind)]
            axes.plot(rows["moved"], rows["lost"], marker, color=colour, alpha=0.35, markeredgewidth=0)
            means = rows.groupby("change", sort=False)[["moved", "lost"]].mean()
            axes.plot(means["moved"], means["lost"], marker, color=colour, markersize=8, label=label)
        axes.axhline(0, color=style.FAINT, lw=0.6)
        axes.set_title(title)
        axes.set_xlabel("attention moved (total variation, deep layers)")
    figure.axes[0].set_ylabel("nats per token lost")
    style.legend(figure, columns=3)
    return figure
