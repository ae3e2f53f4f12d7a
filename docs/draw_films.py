"""Write docs/films/*.html: five traces as films, each a self-contained page of the explorer.

    python docs/draw_films.py

The last one needs the extra floatlens[smollm2].
"""

from __future__ import annotations

from pathlib import Path

import floatlens as fl
from floatlens.explorer.film import film
from floatlens.explorer.page import page

QUESTION = "On which day was the ship Golden Otter launched?"
PASSAGES = ["The Calm Dolphin was launched on 6 March 1842.", "The Golden Otter was launched on 10 February 1847."]


def main() -> None:
    folder = Path(__file__).parent / "films"
    folder.mkdir(exist_ok=True)
    mdm, dream, arm = (fl.load(name) for name in ("tiny-mdm", "tiny-dream", "tiny-arm"))
    asked = {lens.name: lens.trace(QUESTION, PASSAGES, gold=1, max_new_tokens=16) for lens in (mdm, dream, arm)}
    prompt = mdm.prompt(QUESTION, PASSAGES, gold=1)
    with mdm.intervene(fl.MoveAnchors(8)):
        moved = mdm.trace(prompt, max_new_tokens=16)
    films = {
        "diffusion": ("A diffusion model answers", [asked[mdm.name]]),
        "two-models": ("A diffusion model and an autoregressive one", [asked[mdm.name], asked[arm.name]]),
        "dream": ("A diffusion model that was adapted from an autoregressive one", [asked[dream.name]]),
        "moved": ("The anchors moved to other positions", [asked[mdm.name], moved]),
        "sink": ("SmolLM2 and its sink", [fl.load("smollm2").trace("Where is the Eiffel Tower?", max_new_tokens=12)]),
    }
    for name, (title, traces) in films.items():
        target = folder / f"{name}.html"
        target.write_text(page([film(trace) for trace in traces], title), encoding="utf-8")
        print(f"{target.name}: {target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
