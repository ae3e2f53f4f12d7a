"""Draw docs/images/point.png: anchors that float beside an anchor that stays, in one figure.

    python docs/draw_point.py

Received attention over steps (downwards) and positions: LLaDA-8B as published (layer 0), tiny-mdm (the same layer), and
SmolLM2, which is autoregressive (the layer in which the first token receives most) and needs the extra floatlens[smollm2].
Each row is divided by its largest value, so that the eye follows where the anchors are; how much they take is written below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import floatlens as fl
from floatlens.findings import style

QUESTION = "Tell me about the ship Golden Otter."
NEW = 32
Array = np.ndarray[Any, Any]


def panel(model: str, layer: int | None = None) -> tuple[int, Array, Array, int]:
    """Return layer, received attention and anchors (step, position), and the prompt's length.

    Without a layer, that in which the first token receives most.
    """
    trace = fl.load(model).trace(QUESTION, max_new_tokens=NEW, record=["received"])
    values = trace.data["received"].mean("head").transpose("layer", "step", "position").values
    layer = int(np.nanmean(values[..., 0], axis=1).argmax()) if layer is None else layer
    anchors = trace.anchors("sigma(3)").transpose("layer", "step", "position").values
    return layer, values[layer], anchors[layer], trace.prompt_length


def main() -> None:
    published = fl.paper.temporal(layer=0)
    panels: list[tuple[str, Array, Array, int]] = [
        (
            "LLaDA-8B, published\nmasked diffusion, layer 0",
            published["value"].values,
            published["anchor"].values,
            published.attrs["prompt_length"],
        )
    ]
    for name, model, kind, layer in (
        ("tiny-mdm, bundled", "tiny-mdm", "masked diffusion", 0),
        ("SmolLM2-135M", "smollm2", "autoregressive", None),
    ):
        layer, values, anchors, prompt = panel(model, layer)
        panels.append((f"{name}\n{kind}, layer {layer}", values, anchors, prompt))
    with style.sheet():
        figure = style.new_figure(2.9)
        for axes, (title, values, anchors, prompt) in zip(figure.subplots(1, 3), panels, strict=True):
            rows = values / np.nanmax(values, axis=1, keepdims=True)
            cells = np.ma.masked_invalid(rows)
            axes.imshow(cells, cmap=style.SEQUENTIAL, aspect="auto", vmin=0, vmax=1, interpolation="nearest")
            steps, places = np.nonzero(anchors)
            axes.plot(places, steps, "o", ms=2.2, mfc="#00b3b3", mec="white", mew=0.3)
            axes.axvline(prompt - 0.5, color="0.35", lw=0.7, ls=":")
            axes.set_title(title, fontsize=8)
            count = len(np.unique(places))
            share = 100 * float(np.nansum(np.where(anchors, values, 0.0), axis=1).mean())
            said = "anchor at one position" if count == 1 else f"anchors at {count} positions"
            axes.set_xlabel(f"position\n{said};\n{share:.0f} % of attention", fontsize=7)
        figure.axes[0].set_ylabel("step")
        style.caption(
            figure,
            "Attention that each position receives while the model writes, each row relative to its largest. Dots: anchors "
            "by sigma(3). Dotted line: where the answer begins. SmolLM2: the layer with most attention on the first token.",
        )
        target = Path(__file__).parent / "images" / "point.png"
        figure.savefig(target, dpi=200, metadata={"Software": None})
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(200, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


if __name__ == "__main__":
    main()
