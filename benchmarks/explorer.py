"""Frames per second of the explorer in a real browser, while scrubbing through the steps of a film.

The film has 512 positions, 64 steps and 32 layers; the browser is Chromium without a graphics card. Every animation
frame shows another step, and the time between frames is measured. On a shared machine, the CPU time per frame (of all
processes of the browser; 16.7 ms on one core corresponds to 60 frames per second) is more informative.

    python -m benchmarks.explorer
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import psutil
from playwright.sync_api import sync_playwright

from floatlens.explorer import page
from floatlens.explorer.film import film
from tests.browser import ARGUMENTS, chromium
from tests.explorer.traces import planted

SCRUB = """async ([seconds, change]) => {
  const set = new Function("i", "return " + change);
  const times = [], work = [];
  let i = 0, begun = 0;
  await new Promise(done => requestAnimationFrame(function frame(now) {
    begun ||= now;
    times.push(now);
    const before = performance.now();
    window.floatlens.set(set(i++));
    window.floatlens.state();           // draws now, so that the work can be timed
    work.push(performance.now() - before);
    now - begun < seconds * 1000 ? requestAnimationFrame(frame) : done();
  }));
  return [times, work];
}"""
WAYS = {
    "steps, one film": ("({step: i % 64})", 1, {}),
    "steps, a token pinned": ("({step: i % 64})", 1, {"pin": {"panel": 0, "position": 40}}),
    "steps, colours by region": ("({step: i % 64})", 1, {"colour": "region"}),
    "layers, one film": ("({layer: i % 32})", 1, {}),
    "steps, two films": ("({step: i % 64})", 2, {}),
}


def processor_seconds() -> float:
    """CPU time so far of all child processes (the browser)."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(t.user + t.system for t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of scrubbing per case")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=900)
    asked = parser.parse_args()
    made = film(planted(steps=64, layers=32, heads=32, positions=512, new=64))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        print(f"{'':28}{'frames/s':>10}{'slowest 5 %':>13}{'worst':>9}{'script':>11}{'CPU time':>13}")
        for name, (change, count, state) in WAYS.items():
            path = Path(folder, "page.html")
            path.write_text(page([made] * count))
            tab = browser.new_page(viewport={"width": asked.width, "height": asked.height})
            tab.goto(path.as_uri())
            tab.evaluate("state => window.floatlens.set(state)", state)
            tab.evaluate(SCRUB, [0.5, change])
            before = processor_seconds()
            times, work = tab.evaluate(SCRUB, [asked.seconds, change])
            spent = 1000 * (processor_seconds() - before) / len(times)
            gaps = np.diff(times)
            rate, slow, worst = 1000 / gaps.mean(), 1000 / np.quantile(gaps, 0.95), 1000 / gaps.max()
            print(f"{name:28}{rate:10.1f}{slow:13.1f}{worst:9.1f}{np.median(work):8.1f} ms{spent:10.1f} ms")
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
