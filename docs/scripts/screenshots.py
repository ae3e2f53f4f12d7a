"""Make the pictures of the explorer and of the report in docs/images, and the moving picture.

    python docs/scripts/screenshots.py                     the explorer, live too, and explorer.gif
    python docs/scripts/screenshots.py demo/report.html    a report, such as that of `make demo`

It needs Chromium and the extras floatlens[explore,dev].
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from PIL import Image
from playwright.sync_api import sync_playwright

import floatlens as fl
from floatlens.explorer.film import film
from floatlens.explorer.page import page
from tests.browser import ARGUMENTS, chromium

IMAGES = Path(__file__).parents[1] / "images"
WIDE, MOVING = (1440, 900), (1200, 780)
SET = "state => window.floatlens.set(state)"
LAYER, WRITTEN, SELECTED = 3, -27, 6  # of tiny-mdm: a layer, a position of the answer, the step at which it is selected
SWITCH_STEP, SWITCH_LAYER = 18, 24  # of smollm2-mdm
COLOURS, LARGEST = 96, 3_000_000  # of the moving picture: colours, and bytes at most


@contextmanager
def opened(browser: Any, address: str, size: tuple[int, int], dark: bool = False) -> Iterator[Any]:
    """Open a page for as long as the block."""
    viewport = {"width": size[0], "height": size[1]}
    tab = browser.new_page(viewport=viewport, color_scheme="dark" if dark else "light")
    tab.goto(address)
    yield tab
    tab.close()


def save(tab: Any, name: str) -> None:
    """Save a screenshot with few colours."""
    tab.wait_for_timeout(1000)
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)
    print(name, (IMAGES / f"{name}.png").stat().st_size // 1000, "kB")


def take_films(browser: Any) -> None:
    """Take one question asked to two models, one token of the first, and the moving picture."""
    [sample] = fl.read("world:long", split="test", limit=1, passages=5)
    films = []
    for model in ("tiny-mdm", "tiny-arm"):
        lens = fl.load(model)
        prompt = lens.prompt(sample.question, sample.passages, gold=sample.gold, answers=sample.answers)
        trace = lens.trace(prompt, sample_id=sample.id, max_new_tokens=32, matrices=["attention_mean"])
        films.append(film(trace, budget=20_000_000))
    pin = {"pin": {"panel": 0, "position": films[0]["tokens"]["shape"][1] + WRITTEN}}
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one.html"), Path(folder, "two.html")
        one.write_text(page(films[:1]))
        two.write_text(page(films))
        with opened(browser, two.as_uri(), WIDE) as tab:
            tab.evaluate(SET, {"step": 14, "layer": LAYER})
            save(tab, "explorer-two")
        with opened(browser, one.as_uri(), WIDE) as tab:
            tab.evaluate(SET, {"step": SELECTED, "layer": LAYER, "direction": "from"} | pin)
            save(tab, "explorer-token")
        with opened(browser, one.as_uri(), MOVING) as tab:
            move(tab, len(films[0]["steps"]), pin)


def move(tab: Any, steps: int, pin: dict[str, Any]) -> None:
    """Make the moving picture: masks become words, and on the way a token is selected and its attention seen."""
    states: list[tuple[dict[str, Any], int]] = [({"step": 0, "layer": LAYER}, 900)]
    states += [({"step": step}, 250) for step in range(1, SELECTED + 1)]
    states += [(dict(pin), 900), ({"direction": "from"}, 2600), ({"pin": None, "direction": None}, 300)]
    states += [({"step": step}, 250) for step in range(SELECTED + 1, steps)]
    frames, times = [], []
    for state, milliseconds in states:
        tab.evaluate(SET, state)
        tab.wait_for_timeout(250)
        frames.append(Image.open(io.BytesIO(tab.screenshot())).convert("RGB"))
        times.append(milliseconds)
    times[-1] = 3000
    palette = frames[len(frames) // 3].quantize(COLOURS, dither=Image.Dither.NONE)
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    target = IMAGES / "explorer.gif"
    first.save(target, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    print(target.name, target.stat().st_size // 1000, "kB")
    if target.stat().st_size > LARGEST:
        raise SystemExit(f"{target} is larger than {LARGEST} bytes; use fewer colours or frames")


@contextmanager
def served(*models: str) -> Iterator[str]:
    """The address of a live explorer, for as long as the block."""
    words = [sys.executable, "-m", "floatlens", "explore", *models, "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            lines = (re.search(r"http://\S+", line) for line in program.stdout)
            yield next(found[0] for found in lines if found)
        finally:
            program.terminate()


def take_switch(browser: Any) -> None:
    """Take the first thing that the explorer shows: one text without and with the token that becomes SmolLM2's sink."""
    with served() as address, opened(browser, address, WIDE) as tab:
        tab.wait_for_function("() => window.floatlens && window.floatlens.state().step !== undefined")
        tab.evaluate(SET, {"step": SWITCH_STEP, "layer": SWITCH_LAYER})
        save(tab, "explorer-switch")


def take_live(browser: Any) -> None:
    """Take the live explorer with a question that is asked with and without an intervention."""
    with served("tiny-mdm") as address, opened(browser, address, WIDE) as tab:
        tab.get_by_role("checkbox", name="mask-anchors").check()
        tab.get_by_role("button", name="Write").click()
        tab.wait_for_function("() => window.floatlens.state().live.status === 'Done.'", timeout=120_000)
        save(tab, "explorer-live")


def take_report(browser: Any, path: Path) -> None:
    """Take the first screen of a report."""
    with opened(browser, path.resolve().as_uri(), (1280, 1000)) as tab:
        save(tab, "report")


if __name__ == "__main__":
    with sync_playwright() as playwright:
        chosen = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        if len(sys.argv) > 1:
            take_report(chosen, Path(sys.argv[1]))
        else:
            take_films(chosen)
            take_switch(chosen)
            take_live(chosen)
        chosen.close()
