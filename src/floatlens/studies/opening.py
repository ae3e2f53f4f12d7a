"""The first picture of a report: one text without and with the token that becomes the sink, or an MDM beside an ARM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import PowerNorm

from floatlens.anchors import find_anchors
from floatlens.findings import definitions, draw, style
from floatlens.findings.spelling import percent
from floatlens.store.folder import MANIFEST, RunFolder
from floatlens.store.runs import SWITCH
from floatlens.studies.analyse import Drawing
from floatlens.trace.trace import Trace

STEM, RULE = "opening", "sigma(3)"
READING = (
    "Rows are steps of writing, columns positions; dark is much attention (mean over heads and deep layers). "
    f"Framed: anchors by {RULE}. Dots: tokens when they are written."
)


def switch_traces(homes: Sequence[Path]) -> tuple[list[Trace], str]:
    """The traces of one text without and with the sink's token, of the first model that has them, and the token."""
    for home in homes:
        if (home / SWITCH / MANIFEST).exists():
            run = RunFolder.open(home / SWITCH)
            found = {name: Trace.open(path) for name, path in run.samples()}
            if {"without", "with"} <= set(found):
                return [found["without"], found["with"]], str(run.manifest.get("asked", {}).get("token", ""))
    return [], ""


def draw_opening(homes: Sequence[Path], shown: Sequence[Trace], target: Path) -> Drawing | None:
    """Draw the switch, or else the first MDM and the first ARM on one question; None without traces."""
    traces, token = switch_traces(homes)
    titles = [f"Without {token!r}", f"With one {token!r}"]
    if traces:
        heading = f"{style.short(traces[0].model)} reads one text, without and with the token {token!r}"
    else:
        first = {trace.kind: trace for trace in reversed(shown) if trace.has_head_mean("received")}
        traces = [first[kind] for kind in ("mdm", "arm") if kind in first]
        titles = [f"{style.short(trace.model)} ({trace.kind.upper()})" for trace in traces]
        heading = "Attention while the models write"
    if not traces:
        return None
    maps = [_deep(trace) for trace in traces]
    most = max(float(np.nanmax(a_ST)) for a_ST in maps)
    rows = []
    with style.sheet():
        figure = style.new_figure(2.5)
        grid = figure.subplots(1, len(traces), squeeze=False)[0]
        for axes, trace, a_ST, title in zip(grid, traces, maps, titles, strict=True):
            mesh = draw.attention_map(axes, a_ST, norm=PowerNorm(0.5, vmin=0.0, vmax=most))
            anchors_ST = find_anchors(a_ST, RULE, trace.attention_kind)
            draw.hatch_anchors(axes, anchors_ST)
            draw.commit_front(axes, trace.data["committed_at"].values, trace.data["step"].values)
            moved = definitions.floating(definitions.anchor_mass(np.nan_to_num(a_ST), anchors_ST))
            text = f": {percent(moved)} of the anchors' attention moves" if np.isfinite(moved) else ""
            axes.set_title(title + text, fontsize=8)
            axes.set_xlabel("position")
            rows.append(_cells(trace, a_ST, anchors_ST, title))
        grid[0].set_ylabel("step")
        figure.colorbar(mesh, ax=grid, pad=0.01, aspect=18).set_label("share of attention")
    style.save(figure, pd.concat(rows, ignore_index=True), target / STEM)
    return Drawing(STEM, heading, READING)


def _deep(trace: Trace) -> Any:
    """Received attention (step, position), mean over heads and the deep half of the layers."""
    a_SLT = trace.head_mean("received").values
    return a_SLT[:, a_SLT.shape[1] // 2 :].mean(axis=1)


def _cells(trace: Trace, a_ST: Any, anchors_ST: Any, title: str) -> pd.DataFrame:
    S, T = a_ST.shape
    return pd.DataFrame(
        {
            "map": title,
            "step": np.repeat(trace.data["step"].values, T),
            "position": np.tile(np.arange(T), S),
            "token": trace.texts() * S,
            "received": a_ST.ravel(),
            "anchor": anchors_ST.ravel(),
        }
    )
