"""The figures of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from floatlens.evaluation.stress.collection import ROLES, STAGES
from floatlens.findings import style
from floatlens.stats import percentile_mean
from recipes.results.keep import shrink

NAMES = {"nq-open-oracle.first200": "Natural Questions", "hotpotqa-dev.first200": "HotpotQA"}


def plain_name(data: str) -> str:
    """Return the name of a data set as it is shown."""
    return NAMES.get(data, data)


def save(figure: Figure, path: Path) -> None:
    """Save a figure as a small PNG file."""
    with style.sheet():
        figure.savefig(path, dpi=150, metadata={"Software": None})
    shrink(path, path)


VERDICTS = {"holds": "#56b08c", "fails": "#e8946a", "inconclusive": "#d9d9d9"}


def glance(table: pd.DataFrame, published: Mapping[str, str], order: Sequence[str], path: Path) -> None:
    """All claims downwards, the models across: the value in each cell, the verdict as its colour; published values right.

    `table` has one row per claim and model; `order` gives the models across.
    """
    claims = table.drop_duplicates("id").set_index("id")["claim"]
    models = [model for model in order if model in set(table["model"])]
    with style.sheet():
        figure = style.new_figure(0.9 + 0.17 * len(claims))
        axes = figure.subplots()
        for row in table.to_dict("records"):
            if row["model"] in models:
                x, y = models.index(row["model"]), list(claims.index).index(row["id"])
                axes.add_patch(
                    Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, color=VERDICTS.get(row["verdict"], "#f2f2f2"), lw=0)
                )
                axes.text(x, y, f"{row['value']:.2g}", ha="center", va="center", fontsize=5.5)
        for y, id_ in enumerate(claims.index):
            axes.text(len(models) - 0.35, y, published.get(id_, ""), va="center", fontsize=5.5)
        axes.text(len(models) - 0.35, -1, "LLaDA-8B and Dream-7B, published", va="center", fontsize=5.5)
        axes.set_xlim(-0.5, len(models) + 1.9)
        axes.set_ylim(len(claims) - 0.5, -1.5)
        axes.set_yticks(range(len(claims)), claims, fontsize=5.5)
        axes.set_xticks(range(len(models)), models, fontsize=5.5, rotation=30, ha="left")
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in VERDICTS.values()]
        figure.legend(handles, list(VERDICTS), loc="outside lower center", ncols=len(handles))
    save(figure, path)


def interventions(table: pd.DataFrame, path: Path) -> None:
    """What each intervention does beyond its control, with intervals: accuracy on the left, robustness on the right."""
    models, names = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["intervention"]))
    looks = style.looks_of(models)
    with style.sheet():
        figure = style.new_figure(0.9 + 0.12 * len(names) * (len(models) + 1))
        for axes, score, title in zip(
            figure.subplots(1, 2, sharey=True),
            ("accuracy", "loss"),
            ("accuracy beyond the control", "what noise costs, beyond the control"),
            strict=True,
        ):
            for place, model in enumerate(models):
                part = table[(table["model"] == model) & (table["score"] == score)]
                shift = (place - (len(models) - 1) / 2) / (len(models) + 2)
                y = np.array([names.index(name) for name in part["intervention"]]) + shift
                errors = [part["beyond"] - part["beyond_low"], part["beyond_high"] - part["beyond"]]
                look = looks[model] | {"label": model}
                axes.errorbar(part["beyond"], y, xerr=np.abs(errors), ls="none", ms=4, lw=1, **look)
            axes.axvline(0, color="0.6", lw=0.8)
            axes.set_title(title)
            axes.set_yticks(range(len(names)), names, fontsize=6)
        axes.invert_yaxis()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(6, len(models)))
    save(figure, path)


def deployment(table: pd.DataFrame, path: Path) -> None:
    """Right answers over the stages, with intervals, and outdated and misled ones."""
    sets = list(dict.fromkeys(table["data"]))
    models = list(dict.fromkeys(table["model"]))
    colours = style.colour_of(models)
    looks: dict[str, dict[str, Any]] = {
        "accuracy_words": {"ls": "-", "marker": "o"},
        "outdated": {"ls": "--", "marker": "s"},
        "misled": {"ls": ":", "marker": "^"},
    }
    with style.sheet():
        figure = style.new_figure(2.6)
        grid = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
        for axes, data in zip(grid, sets, strict=True):
            here = [model for model in models if ((table["data"] == data) & (table["model"] == model)).any()]
            for place, model in enumerate(here):
                part = table[(table["data"] == data) & (table["model"] == model)].set_index("stage").reindex(STAGES)
                x = np.arange(len(STAGES)) + 0.1 * (place - (len(here) - 1) / 2)
                for name, look in looks.items():
                    axes.plot(x, 100 * part[name].astype(float), color=colours[model], ms=3, **look)
                low, high = (100 * part[f"accuracy_words_{end}"].astype(float) for end in ("low", "high"))
                axes.vlines(x, low, high, color=colours[model], lw=1, alpha=0.6)
            axes.set_xticks(range(len(STAGES)), STAGES, rotation=30, ha="right")
            axes.set_title(data)
        grid[0].set_ylabel("answers (%)")
        lines = {"right": "accuracy_words", "outdated": "outdated", "misled": "misled"}
        handles = [Line2D([], [], color=colours[model], lw=2) for model in models]
        handles += [Line2D([], [], color="0.4", ms=3, **looks[name]) for name in lines.values()]
        figure.legend(
            handles,
            [*models, *lines],
            loc="outside upper center",
            ncols=-(-len(handles) // (1 + len(handles) // 8)),
            fontsize=6,
        )
    save(figure, path)


def roles(table: pd.DataFrame, path: Path) -> None:
    """Attention per token by role of the passage, at each stage."""
    shown = list(dict.fromkeys(zip(table["data"], table["model"], strict=True)))
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    with style.sheet():
        figure = style.new_figure(0.6 + 1.6 * rows)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=True)
        for axes, (data, model) in zip(grid.flat, shown, strict=False):
            here = (table["model"] == model) & (table["data"] == data)
            part = table[here].groupby(["stage", "role"])["per_token"].mean().unstack()
            part = part.reindex(index=STAGES, columns=ROLES)
            for place, role in enumerate(ROLES):
                axes.bar(np.arange(len(STAGES)) + 0.2 * (place - 1.5), part[role], width=0.19, label=role)
            axes.axhline(1, color="0.6", lw=0.8)
            axes.set_title(f"{model}, {data}", fontsize=7)
            axes.set_xticks(range(len(STAGES)), STAGES, rotation=30, ha="right")
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_axis_off()
        for axes in list(grid.flat)[max(0, len(shown) - columns) : len(shown)]:
            axes.tick_params(labelbottom=True)
        for axes in grid[:, 0]:
            axes.set_ylabel("attention per token")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ROLES))
    save(figure, path)


def film(table: pd.DataFrame, path: Path) -> None:
    """Each number by layer (across) and checkpoint (downwards)."""
    titles = {
        "absorption first": "attention on the first token (%)",
        "absorption top(1)": "on the strongest position (%)",
        "floating": "how much anchors move",
        "copying": "best copy score of a head",
    }
    trained = sorted(table["trained"].unique())
    labels = ["SmolLM2" if t < 0 else f"{t:,}" for t in trained]
    with style.sheet():
        figure = style.new_figure(0.9 + 0.24 * len(trained) * 2)
        for axes, name in zip(figure.subplots(2, 2).flat, titles, strict=True):
            grid = table.pivot(index="trained", columns="layer", values=name).reindex(trained)
            image = axes.imshow(grid, cmap=style.SEQUENTIAL, aspect="auto", vmin=0, interpolation="nearest")
            axes.set_yticks(range(len(trained)), labels, fontsize=6)
            axes.set_title(titles[name])
            axes.set_xlabel("layer")
            figure.colorbar(image, ax=axes)
        figure.supylabel("tokens of training", fontsize=7)
    save(figure, path)


def tasks(table: pd.DataFrame, path: Path) -> None:
    """Floating and absorption by task with intervals over texts, one bar per model."""
    models, names = list(dict.fromkeys(table["model"])), list(dict.fromkeys(table["task"]))
    shown = {
        "floating": "how much anchors move",
        "absorption top(1)": "on the strongest position (%)",
        "sink": "on the first, beyond uniform (%)",
    }
    colours = style.colour_of(models)
    with style.sheet():
        figure = style.new_figure(2.2)
        for axes, (name, title) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
            for place, model in enumerate(models):
                mine = table[table["model"] == model]
                means = [percentile_mean(mine.loc[mine["task"] == task, name].to_numpy(float)) for task in names]
                x = np.arange(len(names)) + 0.8 / len(models) * (place - (len(models) - 1) / 2)
                axes.bar(x, [m.value for m in means], width=0.75 / len(models), color=colours[model], label=model)
                axes.vlines(x, [m.low for m in means], [m.high for m in means], color="0.2", lw=0.8)
            axes.set_title(title)
            axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
    save(figure, path)
