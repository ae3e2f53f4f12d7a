"""The style of figures: readable at the width of a paper's page, and for colour-blind readers.

Categorical colours are those of Okabe and Ito; maps are perceptually uniform (sequential) or purple to orange
(diverging), which deuteranopes and protanopes can distinguish.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from floatlens.files import atomic_write

T = TypeVar("T")
PANELS = 4  # of a figure at most
WIDTH = 7.0  # inches: the text width of a two-column page
SEQUENTIAL = "magma_r"
DIVERGING = "PuOr"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#222222"
FAINT = "#8a8a8a"
TITLE, LEGEND = "headline", "legend-above"  # ids of parts of a figure
NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")

SHEET = mpl.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)


@contextmanager
def sheet() -> Iterator[None]:
    """Apply the style sheet inside a block; the user's settings are restored afterwards."""
    with mpl.rc_context(SHEET):
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure with constrained layout; created without pyplot, so that it is freed when dropped."""
    return Figure(figsize=(width, height), layout="constrained")


def caption(figure: Figure, text: str) -> None:
    """Write a caption below the figure, as part of the image."""
    lines = textwrap.fill(" ".join(text.split()), int(figure.get_figwidth() * 20))
    figure.supxlabel(lines, fontsize=6.5, color="#555555", x=0.01, ha="left")


def title(figure: Figure, text: str) -> None:
    """Write a title on a line of its own above the figure, which becomes higher; small enough to fit."""
    height, line = figure.get_figheight(), 0.26
    figure.set_figheight(height + line)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, height / (height + line)))
    for above in (each for each in figure.legends if each.get_gid() == LEGEND):
        above.borderaxespad += 72 * line / above.prop.get_size_in_points()
    size = min(9.0, 72 * figure.get_figwidth() / (0.66 * max(1, len(text))))
    figure.text(0.01, 1 - 0.06 / height, text, va="top", fontsize=size, weight="bold", color=INK, gid=TITLE)


_order: list[str] = []  # of the models of a report, see `same_looks`


@contextmanager
def same_looks(models: Sequence[str]) -> Iterator[None]:
    """Inside a block, a model has the same colour in every figure: that of its place among all models of a report."""
    before = list(_order)
    _order[:] = dict.fromkeys(models)
    try:
        yield
    finally:
        _order[:] = before


def looks_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and label of each name, in order, so that lines differ without colour too."""
    order = list(dict.fromkeys([*_order, *names])) if set(names) & set(_order) else list(names)
    return {
        name: {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "label": short(name)}
        for n, name in enumerate(order)
        if name in names
    }


def shown(names: Sequence[T], most: int = PANELS) -> tuple[list[T], str]:
    """The first names, as many as a figure has panels, and a remark if some are left out."""
    kept = list(names)[:most]
    return kept, f" {len(kept)} of {len(names)} are shown; the data has all." if len(kept) < len(names) else ""


def panels(figure: Figure, count: int, columns: int, **shared: Any) -> Any:
    """A grid of at least `count` axes (row, column); those that are not needed are hidden."""
    columns = max(1, min(columns, count))
    grid = figure.subplots(max(1, -(-count // columns)), columns, squeeze=False, **shared)
    for axes in list(grid.flat)[max(1, count) :]:
        axes.set_axis_off()
    return grid


def legend(figure: Figure, columns: int = 0) -> None:
    """Write one legend for the labels of all axes above the figure."""
    named = {
        text: handle for axes in figure.axes for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = columns or max(1, len(named))
    above = figure.legend(list(named.values()), list(named), loc="outside upper center", ncols=columns)
    above.set_gid(LEGEND)


def short(model: str, width: int = 26) -> str:
    """A model's name, short enough for the title of a panel: the end of a path or Hub id, without file extension."""
    name = model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    return name if len(name) <= width else f"{name[: width - 1]}…"


def save(figure: Figure, data: pd.DataFrame, stem: str | Path) -> list[Path]:
    """Write the figure as STEM.png, STEM.svg and STEM.pdf, and its data as STEM.parquet; return the paths."""
    stem = Path(stem)
    written = []
    engine = figure.get_layout_engine()
    with sheet():
        figure.draw_without_rendering()  # compute the layout once, not for each format
        figure.set_layout_engine("none")
        try:
            for ending, metadata in (("png", {}), ("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
                target = stem.with_name(f"{stem.name}.{ending}")
                with atomic_write(target) as temporary:
                    figure.savefig(temporary, format=ending, metadata=metadata)
                    if ending == "svg":  # a token or a name may have characters that XML does not allow
                        drawn = temporary.read_text(encoding="utf-8")
                        temporary.write_text(NOT_XML.sub("\ufffd", drawn), encoding="utf-8", newline="\n")
                written.append(target)
        finally:
            figure.set_layout_engine(engine)
    target = stem.with_name(f"{stem.name}.parquet")
    with atomic_write(target) as temporary:
        data.to_parquet(temporary, index=False)
    return [*written, target]
