"""Load: thousands of questions through the local engine and through Ray, with the memory of all processes over time.

    python -m benchmarks.load --samples 2000 --out load

The bundled pair is asked the questions of the world. Each engine has two workers. Prints both rates and their ratio,
writes load.json, and draws memory over time. Meant for a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ENGINES = {"local": ("--workers", "2"), "ray": ("--engine", "ray", "--workers", "2")}
MODELS = ("tiny-mdm", "tiny-arm")
SETS = ("world:common", "world:fresh", "world:slots")


def memory(process: psutil.Process) -> int:
    """Bytes of a process and all it started, each page shared by several counted for each by its share."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def finished(out: Path) -> int:
    return sum(1 for _ in out.glob("results/*/*.json"))


def measure(name: str, samples: int, out: Path, every: float) -> dict[str, Any]:
    """Run an engine; memory and finished samples over time. The rate is that between the first and the last result."""
    shutil.rmtree(out, ignore_errors=True)
    each = -(-samples // (len(MODELS) * len(SETS)))
    data = [word for one in SETS for word in ("--data", one)]
    words = ["eval", *MODELS, *data, "--limit", str(each), "--max-new-tokens", "16", "--batch-size", "16"]
    line = [sys.executable, "-m", "floatlens", *words, *ENGINES[name], "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    began = time.monotonic()
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment)
    watched = psutil.Process(running.pid)
    curve: list[tuple[float, int, int]] = []
    while running.poll() is None:
        curve.append((time.monotonic() - began, memory(watched), finished(out)))
        time.sleep(every)
    if running.returncode:
        raise SystemExit(f"the {name} engine ended with code {running.returncode}")
    done = finished(out)
    busy = [(t, n) for t, _, n in curve if 0 < n < done]
    if len(busy) < 2:
        raise SystemExit(f"{done} samples are done too soon to tell a rate; use more --samples or a smaller --every")
    rate = (busy[-1][1] - busy[0][1]) / (busy[-1][0] - busy[0][0])
    return {"engine": name, "samples": done, "rate": rate, "seconds": time.monotonic() - began, "curve": curve}


def draw(found: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for one in found:
        times, sizes, counts = zip(*one["curve"], strict=True)
        left.plot(times, [size / 1e9 for size in sizes], label=one["engine"])
        right.plot(times, counts, label=f"{one['engine']}: {one['rate']:.1f} a second")
    left.set(xlabel="seconds", ylabel="memory of all processes, GB", ylim=(0, None))
    right.set(xlabel="seconds", ylabel="finished samples")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("load"))
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = [measure(name, given.samples, given.out / name, given.every) for name in ENGINES]
    (given.out / "load.json").write_text(json.dumps(found))
    draw(found, given.out / "load.png")
    for one in found:
        sizes = [size for _, size, n in one["curve"] if 0.25 * one["samples"] < n]
        print(
            f"{one['engine']}: {one['samples']} samples, {one['rate']:.1f} a second, "
            f"{sizes[0] / 1e9:.2f} GB after a quarter, {sizes[-1] / 1e9:.2f} GB at the end"
        )
    local, ray = (one["rate"] for one in found)
    print(f"ray / local: {ray / local:.2f} (load of the machine {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    main()
