"""The figures of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from floatlens.evaluation.deployment import ROLES, STAGES
from floatlens.findings import style


def save(figure: Figure, path: Path) -> None:
    """Save a figure as PNG."""
    with style.sheet():
        figure.savefig(path, dpi=150, metadata={"Software": None})


def interventions(table: pd.DataFrame, path: Path) -> None:
    """What each intervention does beyond its control, with intervals: accuracy on the left, robustness on the right."""
    beyond = table[table["compared"] == "beyond"]
    models, names = list(dict.fromkeys(beyond["model"])), list(dict.fromkeys(beyond["intervention"]))
    colours, markers = style.colour_of(models), style.marker_of(models)
    with style.sheet():
        figure = style.new_figure(0.9 + 0.45 * len(names))
        for axes, score, title in zip(
            figure.subplots(1, 2, sharey=True),
            ("accuracy", "loss"),
            ("change of accuracy", "change of what noise costs"),
            strict=True,
        ):
            for place, model in enumerate(models):
                part = beyond[(beyond["model"] == model) & (beyond["score"] == score)]
                y = np.array([names.index(name) for name in part["intervention"]]) + 0.15 * (
                    place - (len(models) - 1) / 2
                )
                errors = [part["value"] - part["low"], part["high"] - part["value"]]
                axes.errorbar(part["value"], y, xerr=np.abs(errors), ls="none", color=colours[model], marker=markers[model],
                              ms=4, lw=1, label=model)  # fmt: skip
            axes.axvline(0, color="0.6", lw=0.8)
            axes.set_title(title)
            axes.set_yticks(range(len(names)), names, fontsize=6)
        axes.invert_yaxis()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
    save(figure, path)


def deployment(table: pd.DataFrame, path: Path) -> None:
    """Right, outdated and misled answers over the stages."""
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
            for model in models:
                part = table[(table["data"] == data) & (table["model"] == model)].set_index("stage").reindex(STAGES)
                for name, look in looks.items():
                    label = f"{model}, {'right' if name == 'accuracy_words' else name}"
                    axes.plot(
                        range(len(STAGES)),
                        100 * part[name].astype(float),
                        color=colours[model],
                        ms=3,
                        label=label,
                        **look,
                    )
            axes.set_xticks(range(len(STAGES)), STAGES, rotation=30, ha="right")
            axes.set_title(data[:40])
        grid[0].set_ylabel("answers (%)")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=6)
    save(figure, path)


def roles(table: pd.DataFrame, path: Path) -> None:
    """Attention per token by role of the passage, at each stage."""
    models = list(dict.fromkeys(table["model"]))
    with style.sheet():
        figure = style.new_figure(2.2)
        grid = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axes, model in zip(grid, models, strict=True):
            part = table[table["model"] == model].groupby(["stage", "role"])["per_token"].mean().unstack()
            part = part.reindex(index=STAGES, columns=ROLES)
            for place, role in enumerate(ROLES):
                axes.bar(np.arange(len(STAGES)) + 0.2 * (place - 1.5), part[role], width=0.19, label=role)
            axes.axhline(1, color="0.6", lw=0.8)
            axes.set_title(model)
            axes.set_xticks(range(len(STAGES)), STAGES, rotation=30, ha="right")
        grid[0].set_ylabel("attention per token")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ROLES))
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
    """Floating and absorption by task, one group of bars per model."""
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
                part = table[table["model"] == model].groupby("task")[name].mean().reindex(names)
                x = np.arange(len(names)) + 0.8 / len(models) * (place - (len(models) - 1) / 2)
                axes.bar(x, part, width=0.75 / len(models), color=colours[model], label=model)
            axes.set_title(title)
            axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(models))
    save(figure, path)
