"""Draw docs/images/floating.png and docs/images/anchor-rules.png.

    python docs/scripts/drawings.py

The first is a drawing of made-up attention; the second shows one question asked to three bundled models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import floatlens as fl
from floatlens.anchors import find_anchors
from floatlens.findings import style
from floatlens.findings.positions import profile

IMAGES = Path(__file__).parents[1] / "images"
STEPS, POSITIONS, PROMPT = 12, 28, 14
RULES = ("sigma(3)", "excess(3)", "top(1)", "first", "share(0.3)")


def made_up(anchors: Mapping[range, int]) -> Any:
    """Return attention of steps × positions that is nearly even except for one anchor per range of steps."""
    attention = np.random.default_rng(0).uniform(0.6, 1.4, (STEPS, POSITIONS))
    for steps, position in anchors.items():
        attention[steps, position] = 9
    return attention / attention.sum(1, keepdims=True)


def floating() -> Any:
    """Draw an anchor that stays beside one that moves."""
    sink = made_up({range(STEPS): 0})
    moving = made_up({range(4): 3, range(4, 8): 11, range(8, 12): 19})
    with style.sheet():
        drawn = style.new_figure(2.6)
        for axes, attention, title in zip(
            drawn.subplots(1, 2, sharey=True),
            (sink, moving),
            ("A sink stays at its position", "A floating anchor moves while the model writes"),
            strict=True,
        ):
            axes.imshow(attention, cmap=style.SEQUENTIAL, aspect="auto", interpolation="nearest", vmin=0)
            axes.axvline(PROMPT - 0.5, color=style.INK, linewidth=0.8)
            axes.set(title=title, yticks=[0, STEPS - 1], yticklabels=["first step", "last step"])
            axes.set_xticks([PROMPT / 2 - 0.5, PROMPT * 1.5 - 0.5], ["prompt", "answer"])
            axes.tick_params(length=0)
        drawn.supxlabel("position (darker: receives more attention)", fontsize=8)
    return drawn


def anchor_rules(layer: int = 3) -> Any:
    """Draw the anchors of each rule at the last step of a layer, above the received attention of three models."""
    [sample] = fl.read("world:long", split="test", limit=1, passages=5)
    names = ("tiny-mdm", "tiny-dream", "tiny-arm")
    with style.sheet():
        drawn = style.new_figure(1.7 * len(names) + 0.5)
        for axes, name in zip(drawn.subplots(len(names), 1, sharex=True), names, strict=True):
            trace = fl.load(name).trace(sample.question, sample.passages, gold=sample.gold, max_new_tokens=32)
            a_SLT = profile(trace, [layer]).values
            a_T = a_SLT[-1, 0]
            axes.bar(np.arange(len(a_T)), 100 * a_T, width=1.0, color="#bbbbbb")
            top = 100 * np.nanmax(a_T)
            for index, rule in enumerate(RULES):
                chosen = np.flatnonzero(find_anchors(a_SLT, rule, trace.attention_kind)[-1, 0])
                height = np.full(len(chosen), top * (1.12 + 0.14 * index))
                axes.plot(chosen, height, "v", ms=4, color=f"C{index}", label=rule)
            axes.set(title=name, ylabel="received (%)", xlim=(-2, len(a_T)), ylim=(0, 1.8 * top))
        axes.set_xlabel(f"position (layer {layer}, last step)")
        handles, labels = axes.get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=len(RULES))
    return drawn


if __name__ == "__main__":
    for name, figure in (("floating", floating()), ("anchor-rules", anchor_rules())):
        with style.sheet():
            figure.savefig(IMAGES / f"{name}.png", dpi=130)
        print(name, (IMAGES / f"{name}.png").stat().st_size // 1000, "kB")
