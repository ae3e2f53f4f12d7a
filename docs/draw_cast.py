"""Draw docs/images/cast.png: where the attention of SmolLM2 and of its three adapters goes, layer by layer.

    python docs/draw_cast.py

The numbers are those on the models' cards, which `recipes/smollm2/card.py measure` took: the share of attention that
position 0 receives, and that of the strongest position.
"""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from floatlens.findings import style
from floatlens.models.bundled import MODELS

ROW = re.compile(r"^\| \d+ \| (0\.\d+) \| (0\.\d+) \| (0\.\d+) \|", re.MULTILINE)
TITLES = {
    "smollm2": "SmolLM2\ncausal, not adapted",
    "smollm2-arm": "smollm2-arm\ncausal",
    "smollm2-canvas": "smollm2-canvas\nonly the prompt is causal",
    "smollm2-mdm": "smollm2-mdm\nno causal mask",
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
        path = Path(__file__).parent / "images" / "cast.png"
        figure.savefig(path, dpi=200, metadata={"Software": None})
    picture = Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    picture.save(path, optimize=True)


if __name__ == "__main__":
    main()
