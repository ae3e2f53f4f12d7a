"""Compare the anchor rules on the same traces: make the table and the figure of docs/anchor-rules.md.

    python docs/compare_rules.py [RUN...]

Without runs, the bundled models are traced first, and the table replaces the text between the two comments `<!-- rules -->`
of the page. With runs, the table is only printed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from drawing import make_run, save

from floatlens.anchors import find_anchors
from floatlens.findings import style
from floatlens.findings.received import profile
from floatlens.store.folder import RunFolder
from floatlens.store.runs import RunTraces
from floatlens.trace.trace import Trace

PAGE = Path(__file__).parent / "anchor-rules.md"
TRACED = {
    model: f"trace {model} --data world:long --passages 5 --limit 12 --out {model}"
    for model in ("tiny-mdm", "tiny-dream", "tiny-arm")
}
RULES = ("sigma(3)", "excess(3)", "top(1)", "first", "share(0.3)")
BLOCK = re.compile(r"(<!-- rules -->\n).*?(<!-- rules -->)", re.DOTALL)


def main() -> None:
    if sys.argv[1:]:
        print(table(compare(traces_of(sys.argv[1:]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        traces = traces_of([make_run(Path(folder) / name, command) for name, command in TRACED.items()])
        found = compare(traces)
        save(figure(traces), PAGE.parent / "images" / "anchor-rules.png")
    PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}{table(found)}\n{match[2]}", PAGE.read_text()))
    print(table(found))


def traces_of(runs: Sequence[Any]) -> list[Trace]:
    return list(RunTraces([RunFolder.open(run) for run in runs]))


def compare(traces: Sequence[Trace]) -> pd.DataFrame:
    """Return one row per model and rule, averaged over samples, steps and layers.

    anchors   number of anchors per step and layer
    none      share of steps and layers without anchors
    absorbed  share of attention on the anchors
    agree     Jaccard index with the anchors of sigma(3), where either rule finds any
    """
    rows = []
    for trace in traces:
        a_SLT = profile(trace).values
        default = find_anchors(a_SLT, RULES[0], trace.attention)
        for rule in RULES:
            chosen = find_anchors(a_SLT, rule, trace.attention)
            either = (chosen | default).sum(-1)
            agree = np.where(either > 0, (chosen & default).sum(-1) / np.maximum(either, 1), np.nan)
            rows.append(
                {
                    "model": style.short(trace.model),
                    "rule": rule,
                    "anchors": chosen.sum(-1).mean(),
                    "none": (chosen.sum(-1) == 0).mean(),
                    "absorbed": np.where(chosen, a_SLT, 0.0).sum(-1).mean(),
                    "agree": np.nanmean(agree) if np.isfinite(agree).any() else np.nan,
                }
            )
    return pd.DataFrame(rows).groupby(["model", "rule"], sort=False, as_index=False).mean()


def table(found: pd.DataFrame) -> str:
    """Return the comparison as a Markdown table."""
    lines = [
        "| model | rule | anchors | none found | absorbed | agreement with sigma(3) |",
        "|---|---|---|---|---|---|",
    ]
    for row in found.to_dict("records"):
        shares = " | ".join(f"{100 * row[name]:.1f} %" for name in ("none", "absorbed", "agree"))
        lines.append(f"| {row['model']} | `{row['rule']}` | {row['anchors']:.2f} | {shares} |")
    return "\n".join(lines)


def figure(traces: Sequence[Trace], layer: int = 3) -> Any:
    """Draw the anchors of each rule at the last step of a layer, above each model's received attention (first trace)."""
    first = list({trace.model: trace for trace in reversed(traces)}.values())[::-1]
    with style.sheet():
        drawn = style.new_figure(1.7 * len(first) + 0.5)
        grid = drawn.subplots(len(first), 1, squeeze=False, sharex=True)[:, 0]
        for axes, trace in zip(grid, first, strict=True):
            a_SLT = profile(trace, [layer]).values
            a_T = a_SLT[-1, 0]
            axes.bar(np.arange(len(a_T)), 100 * a_T, width=1.0, color="#bbbbbb")
            top = 100 * np.nanmax(a_T)
            for index, rule in enumerate(RULES):
                chosen = np.flatnonzero(find_anchors(a_SLT, rule, trace.attention)[-1, 0])
                height = np.full(len(chosen), top * (1.12 + 0.14 * index))
                axes.plot(chosen, height, "v", ms=4, color=f"C{index}", label=rule)
            axes.set(title=style.short(trace.model), ylabel="received (%)", xlim=(-2, len(a_T)), ylim=(0, 1.8 * top))
        axes.set_xlabel(f"position (layer {layer}, last step)")
        handles, labels = axes.get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=len(RULES))
    return drawn


if __name__ == "__main__":
    main()
