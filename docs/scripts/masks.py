"""Draw docs/images/masks.png: which keys each row of a sequence sees, for every kind of attention.

python docs/scripts/masks.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from floatlens.decode.network import count_blocks, visible
from floatlens.findings import style

PROMPT, NEW, BLOCK, WINDOW = 6, 8, 4, 5
T = PROMPT + NEW
UNSEEN, SEEN, STEP = 0, 1, 2  # not visible; visible in a row that is not recomputed; visible in a row of the step
Mask = np.ndarray[Any, Any]


def by_blocks(blocks: torch.Tensor, rows: range) -> Mask:
    """Return a block-causal mask up to the block that is being denoised; rows of the step are marked."""
    made = visible(blocks[None])[0].int().numpy()
    made[rows.start : rows.stop] *= STEP
    made[rows.stop :] = UNSEEN
    made[:, rows.stop :] = UNSEEN
    return made


def masks() -> dict[str, Mask]:
    """Return the mask of each kind of attention, at a step in the middle of the answer."""
    causal = np.tril(np.ones((T, T), int))
    last = PROMPT + 4
    causal[last] *= STEP
    causal[last + 1 :] = UNSEEN
    canvas = np.tril(np.ones((T, T), int))
    canvas[PROMPT - 1 :] = STEP
    whole = count_blocks(torch.ones(1, T, dtype=torch.bool), BLOCK)[0][0]
    after = (torch.arange(T) + -PROMPT % BLOCK) // BLOCK
    gemma = np.tril(np.ones((T, T), int))
    gemma[PROMPT + BLOCK :] = STEP
    sliding = np.tril(np.ones((T, T), int)) - np.tril(np.ones((T, T), int), -WINDOW)
    sliding[PROMPT + BLOCK :] = UNSEEN
    sliding[PROMPT + BLOCK :, PROMPT + BLOCK - (WINDOW - 1) :] = STEP
    forward = STEP * np.tril(np.ones((T, T), int))
    first = PROMPT // BLOCK * BLOCK
    return {
        "bidirectional\nllada, dream, a2d, masked": np.full((T, T), STEP),
        "causal\nany causal model": causal,
        "canvas\nsmollm2-canvas": canvas,
        "blocks from the start\nsdar, llada2, llada2.1": by_blocks(whole, range(first + BLOCK, first + 2 * BLOCK)),
        "blocks after the prompt\na2d-block": by_blocks(after, range(PROMPT + BLOCK, PROMPT + 2 * BLOCK)),
        "canvases\ndiffusion-gemma, full layers": gemma,
        "canvases\ndiffusion-gemma, sliding layers": sliding,
        "two-way, forward heads\nbimamba; all heads of mamba": forward,
        "two-way, backward heads\nbimamba": forward.T,
    }


def draw(path: Path) -> None:
    """Draw all masks as one figure."""
    with style.sheet():
        figure = style.new_figure(height=7.6)
        axes = figure.subplots(3, 3).ravel()
        colours = ("#f3f3f3", "#9ec9e8", style.COLOURS[0])
        for ax, (title, mask) in zip(axes, masks().items(), strict=True):
            ax.imshow(mask, cmap=ListedColormap(colours), vmin=UNSEEN, vmax=STEP)
            ax.set_title(title, fontsize=8)
            ax.set_xticks(np.arange(-0.5, T), minor=True)
            ax.set_yticks(np.arange(-0.5, T), minor=True)
            ax.grid(which="minor", color="white", linewidth=0.6)
            ax.tick_params(which="both", length=0)
            ax.set_xticks([PROMPT / 2 - 0.5, PROMPT + NEW / 2 - 0.5], ["prompt", "answer"])
            ax.set_yticks([PROMPT / 2 - 0.5, PROMPT + NEW / 2 - 0.5], ["prompt", "answer"], rotation=90, va="center")
            for side in (ax.axhline, ax.axvline):
                side(PROMPT - 0.5, color=style.INK, linewidth=0.8)
        names = ("not visible, or not there yet", "row computed at an earlier step", "row of this step")
        handles = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        figure.savefig(path, dpi=110)
    print(path, path.stat().st_size // 1000, "kB")


if __name__ == "__main__":
    draw(Path(__file__).parents[1] / "images" / "masks.png")
