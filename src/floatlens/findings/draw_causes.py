"""Figures of the finding `causes`: scores over the dose, and the effect of each intervention."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from floatlens.findings import style

LOWER_IS_BETTER = ("kl", "gold_nll")
LABELS = {"kl": "KL to the un-intervened (nats)", "gold_nll": "surprise of the gold answer (nats)"}


def draw_dose(numbers: pd.DataFrame, score: str) -> Figure:
    groups, models = list(dict.fromkeys(numbers["group"])), list(dict.fromkeys(numbers["model"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    columns = max(1, min(3, len(groups)))
    rows = max(1, -(-len(groups) // columns))
    factor = 1.0 if score in LOWER_IS_BETTER else 100.0
    with style.sheet():
        drawn = style.new_figure(0.9 + 1.9 * rows)
        grid = drawn.subplots(rows, columns, squeeze=False, sharey=True)
        for axes, group in zip(grid.flat, groups, strict=False):
            for model in models:
                part = numbers[(numbers["group"] == group) & (numbers["model"] == model)].sort_values("dose")
                if len(part):
                    look = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
                    _dose_line(axes, part, look, factor, starts="layers={n}" not in group)
            axes.set_title(_titled(group))
            axes.set_xlabel(_axis(group))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        for axes in list(grid.flat)[len(groups) :]:
            axes.set_axis_off()
        if not groups:
            grid[0, 0].text(0.5, 0.5, "no intervention was given in doses", ha="center", va="center")
        else:
            drawn.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
            if factor == 100.0:
                grid[0, 0].set_ylim(-3, 103)
        for axes in grid[:, 0]:
            axes.set_ylabel(LABELS.get(score, f"{score.replace('_', ' ')} (%)"))
        n = int(numbers["n"].max()) if len(numbers) else 0
        style.caption(
            drawn,
            f"Mean over up to {n} questions; bands: 95 % bootstrap intervals. Dashed: as many random positions or heads, "
            f"mean over seeds. Dose 0 or dotted: without.",
        )
    return drawn


def _dose_line(axes: Axes, part: pd.DataFrame, look: dict[str, Any], factor: float, starts: bool) -> None:
    """Draw the intervention as a line and its control dashed; both start at the plain score if doses are numbers."""
    plain = factor * float(part["plain"].iloc[0])
    x = part["dose"].to_numpy(float)
    for key, line in (("under", {"ls": "-"}), ("control", {"ls": "--", "mfc": "white", "label": "_"})):
        y, low, high = (factor * part[f"{key}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
        if not np.isfinite(y).any():
            continue
        at, values = (np.r_[0.0, x], np.r_[plain, y]) if starts else (x, y)
        axes.plot(at, values, **{**look, **line}, clip_on=False)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.13 if key == "under" else 0.05, lw=0)
    if not starts:
        axes.axhline(plain, color=look["color"], lw=0.7, ls=":")


def draw_effects(numbers: pd.DataFrame, score: str) -> Figure:
    models, names = list(dict.fromkeys(numbers["model"])), list(dict.fromkeys(numbers["intervention"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    factor, unit = (1.0, "nats") if score in LOWER_IS_BETTER else (100.0, "points")
    with style.sheet():
        drawn = style.new_figure(1.1 + 0.22 * len(names))
        axes = drawn.subplots()
        for index, model in enumerate(models):
            part = numbers[numbers["model"] == model].set_index("intervention")
            y = np.array([names.index(name) for name in part.index]) + 0.26 * (index - (len(models) - 1) / 2)
            value, low, high = (factor * part[f"loss{end}"].to_numpy(float) for end in ("", "_low", "_high"))
            look: dict[str, Any] = {"color": colours[model], "marker": markers[model], "label": style.short(model)}
            axes.errorbar(value, y, xerr=np.array([value - low, high - value]), ls="none", lw=0.9, ms=3.5, **look)
        axes.axvline(0, color="#555555", lw=0.6)
        for index in range(1, len(names), 2):
            axes.axhspan(index - 0.5, index + 0.5, color="#f3f3f3", lw=0, zorder=0)
        axes.set_yticks(range(len(names)), [_titled(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        what = "added to" if score in LOWER_IS_BETTER else "taken from"
        axes.set_xlabel(f"{what} {LABELS.get(score, score.replace('_', ' '))} beyond the control ({unit})")
        drawn.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
        n = int(numbers["n"].max())
        style.caption(
            drawn, f"Mean over up to {n} questions with 95 % bootstrap intervals, paired question by question."
        )
    return drawn


def _axis(group: str) -> str:
    """Axis label of a group's dose."""
    known = {"layers={n}": "layer", "heads=top({n}": "heads", "rule=top({n}": "anchors"}
    known["by={n}"] = "positions further on"
    return next((word for part, word in known.items() if part in group), "dose")


def _titled(text: str) -> str:
    """A short title for an intervention.

    >>> _titled("mask-anchors(rule=top(n=4), layers=deep)"), _titled("ablate-heads(heads=top({n}))")
    ('mask-anchors, top 4, deep', 'ablate-heads, top n')
    >>> _titled("mask-anchors(rule=sigma(k=3), layers=2)"), _titled("mask-anchors(rule=sigma(3), layers={n})")
    ('mask-anchors, sigma 3, layer 2', 'mask-anchors, sigma 3, by layer')
    """
    name, _, inside = text.partition("(")
    inside = re.sub(r", by=retrieval|\b(rule|heads|k|n)=", "", inside[:-1]).replace("layers={n}", "by layer")
    inside = re.sub(r"layers=(shallow|deep)", r"\1", inside.replace("{n}", "n"))
    inside = re.sub(r"layers=(\d+)\b(?!:)", r"layer \1", inside)
    words = re.sub(r"\b(top|sigma|share|excess|random)\(([^()]*)\)", r"\1 \2", inside)
    return f"{name}, {words}" if words else name
