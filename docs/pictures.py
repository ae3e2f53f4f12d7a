"""Take the screenshots of the documentation. Run it from the root of the repository:

python docs/pictures.py                        the explorer
python docs/pictures.py demo/report.html       a report, such as that of `make demo`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright

import floatlens as fl
from floatlens.explorer import page
from floatlens.explorer.film import film
from tests.browser import ARGUMENTS, chromium

IMAGES = Path(__file__).parent / "images"
FROM = {"direction": "from"}
WIDE, PHONE = (1440, 900), (390, 844)

# name: number of films, size, dark mode, state; negative positions count from the end, where the answer is
PICTURES: dict[str, tuple[int, tuple[int, int], bool, dict[str, Any]]] = {
    "explorer-light": (1, WIDE, False, {"step": 12, "layer": 3, "pin": {"panel": 0, "position": -28}}),
    "explorer-dark": (1, WIDE, True, {"step": 12, "layer": 4, "colour": "region"}),
    "explorer-token-dark": (1, WIDE, True, {"step": 6, "layer": 3, "pin": {"panel": 0, "position": -27}} | FROM),
    "explorer-two-light": (2, WIDE, False, {"step": 14, "layer": 3, "pin": {"panel": 0, "position": -28}}),
    "explorer-two-dark": (2, WIDE, True, {"step": 14, "layer": 3}),
    "explorer-phone": (1, PHONE, False, {"step": 12, "layer": 3, "colour": "kind"}),
}  # fmt: skip
# name: size, dark mode, section at the top
REPORTS = {
    "report-light": ((1280, 1180), False, "summary"),
    "report-dark": ((1280, 1180), True, "drift"),
    "report-phone": ((390, 1000), False, "summary"),
}


def take(browser: Any, name: str, path: Path, size: tuple[int, int], dark: bool, script: str, value: Any) -> None:
    """Open a page, run a script in it, and save a screenshot."""
    width, height = size
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    tab.goto(path.resolve().as_uri())
    tab.evaluate(script, value)
    tab.wait_for_timeout(1000)
    tab.screenshot(path=IMAGES / f"{name}.png")
    tab.close()
    print(name, (IMAGES / f"{name}.png").stat().st_size // 1000, "kB")


def take_report(browser: Any, path: Path) -> None:
    """Take a report in light mode, in dark mode and on a phone."""
    script = "name => name === 'summary' || document.getElementById(name).scrollIntoView()"
    for name, (size, dark, section) in REPORTS.items():
        take(browser, name, path, size, dark, script, section)


def take_explorer(browser: Any) -> None:
    """Take the explorer in several states, on one question."""
    [sample] = fl.read("world:long", split="test", limit=1, passages=5)
    films = []
    for model in ("tiny-mdm", "tiny-arm"):
        lens = fl.load(model)
        prompt = lens.prompt(sample.question, sample.passages, gold=sample.gold, answers=sample.answers)
        trace = lens.trace(prompt, sample_id=sample.id, max_new_tokens=32, matrices=["attention_mean"])
        films.append(film(trace, budget=20_000_000))
    length = films[0]["tokens"]["shape"][1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        for name, (count, size, dark, state) in PICTURES.items():
            path.write_text(page(films[:count]))
            if "pin" in state:
                state = state | {"pin": {"panel": 0, "position": length + state["pin"]["position"]}}
            take(browser, name, path, size, dark, "state => window.floatlens.set(state)", state)


if __name__ == "__main__":
    with sync_playwright() as playwright:
        chosen = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        take_report(chosen, Path(sys.argv[1])) if len(sys.argv) > 1 else take_explorer(chosen)
        chosen.close()
