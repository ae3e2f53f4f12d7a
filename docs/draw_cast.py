"""Draw the figures of docs/cast.md, SmolLM2 and its three adapters side by side, and write its tables.

    python docs/draw_cast.py                    docs/images/cast.png, from the models' cards
    python docs/draw_cast.py --runs FOLDER      also drift, heads and flow, from traces that are kept in FOLDER

cast.png shows what `recipes/smollm2/card.py measure` took: the share of attention that position 0 receives, and that of
the strongest position. The other figures come from runs of the program; the commands are printed, and a run that exists
is used again. The tables replace the text between two comments such as `<!-- drift -->`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from drawing import DOCS, make_run, save, table
from PIL import Image

from floatlens.findings import style
from floatlens.findings.finding import FINDINGS
from floatlens.models.bundled import MODELS
from floatlens.store.folder import RunFolder
from floatlens.store.runs import RunTraces

ROW = re.compile(r"^\| \d+ \| (0\.\d+) \| (0\.\d+) \| (0\.\d+) \|", re.MULTILINE)
TITLES = {
    "smollm2": "SmolLM2\ncausal, not adapted",
    "smollm2-arm": "smollm2-arm\ncausal",
    "smollm2-canvas": "smollm2-canvas\nonly the prompt is causal",
    "smollm2-mdm": "smollm2-mdm\nno causal mask",
}

COMMAND = "trace {model} --data atlas --passages 5 --limit 12 --max-new-tokens 16 --dtype bfloat16 --out {model}"
PICTURES: dict[str, dict[str, dict[str, Any]]] = {
    "drift": {"cast-drift": {"layer": [0, 11, 24]}, "cast-drift-numbers": {"view": "numbers"}},
    "heads": {"cast-heads": {"view": "depth"}},
    "flow": {"cast-flow": {"view": "layers"}},
}
COLUMNS = {
    "drift": ["model", "kind", "floating", "renewal", "floating, writing rows", "anchors per step", "samples"],
    "heads": ["model", "kind", "heads above 0.1", "heads above 0.5", "heads", "score-weighted depth", "samples used"],
}


def shares_of(model: str) -> tuple[list[float], list[float]]:
    """Return the shares of position 0 and of the strongest position by layer, from the model's card.

    SmolLM2 itself stands on every card, with position 0 only, which is its strongest position where it has a sink.
    """
    card = (MODELS / (model if model != "smollm2" else "smollm2-arm") / "README.md").read_text(encoding="utf-8")
    rows = [[float(value) for value in found] for found in ROW.findall(card)]
    if model == "smollm2":
        return [row[0] for row in rows], []
    return [row[1] for row in rows], [row[2] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, help="folder of the traces; without it, only cast.png is drawn")
    folder = parser.parse_args().runs
    draw_sinks(DOCS / "images" / "cast.png")
    if folder is not None:
        runs = [make_run(folder / model, COMMAND.format(model=model)) for model in TITLES]
        draw_findings(RunTraces([RunFolder.open(run) for run in runs]))


def draw_findings(traces: RunTraces) -> None:
    """Draw the figures of the findings, and write the table of each into the page."""
    page = DOCS / "cast.md"
    for name, pictures in PICTURES.items():
        finding = FINDINGS[name]
        measured = finding.measure(traces)
        for stem, settings in pictures.items():
            maps = settings.get("view", finding.views[0]) in finding.maps
            save(finding.figure(traces if maps else measured, **settings), DOCS / "images" / f"{stem}.png")
        print(*finding.sentences(measured), sep="\n")
        shown = COLUMNS.get(name)
        made = columns_of(finding.tables(measured)[0], shown) if shown else table(finding.claims(measured))
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- {name} -->)", re.DOTALL)
        text, found = block.subn(lambda match, made=made: match[1] + made + "\n" + match[2], page.read_text())
        if not found:
            raise SystemExit(f"{page} has no two lines <!-- {name} --> to put the table between")
        page.write_text(text)


def columns_of(found: Any, names: list[str]) -> str:
    """Return some columns of a report's table as a Markdown table."""
    chosen = [found.columns.index(name) for name in names]
    rows = [names, ["---"] * len(names), *([row[n] for n in chosen] for row in found.rows)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def draw_sinks(path: Path) -> None:
    """Draw attention on position 0 and on the strongest position by layer, one panel per model."""
    with style.sheet():
        figure = style.new_figure(1.9)
        grid = figure.subplots(1, len(TITLES), sharey=True)
        for axes, (model, title) in zip(grid, TITLES.items(), strict=True):
            first, strongest = shares_of(model)
            layers = range(len(first))
            axes.fill_between(layers, 0, first, color="#7a5195", alpha=0.85, lw=0, label="position 0")
            if strongest:
                axes.plot(layers, strongest, color="#ef8a17", lw=1.4, label="strongest position")
            axes.set(ylim=(0, 1), xlim=(0, len(first) - 1), xlabel="layer")
            axes.set_title(title, fontsize=8)
        grid[0].set_ylabel("share of attention")
        handles = grid[-1].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2)
        figure.savefig(path, dpi=200, metadata={"Software": None})
    picture = Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    picture.save(path, optimize=True)


if __name__ == "__main__":
    main()
