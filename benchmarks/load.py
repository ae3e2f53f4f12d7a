"""Load: thousands of questions through the local engine and through Ray, with the memory of all processes over time.

    python -m benchmarks.load --samples 2000 --out load --figure load.png

The bundled pair answers questions of the world, in two local processes and in two Ray workers. Prints a table with both
rates, their ratio, and memory during the run; writes load.json; draws memory and finished samples over time. Rates need an
idle machine; CPU times do not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

ENGINES = {"two local processes": ("--engine", "local:2"), "two Ray workers": ("--engine", "ray:2")}
MODELS = ("tiny-mdm", "tiny-arm")
SETS = ("world:common", "world:fresh", "world:slots", "world:hops")


@dataclass
class Look:
    """One observation of a running command: seconds since its start, bytes, CPU seconds so far, finished samples."""

    seconds: float
    memory: int
    cpu: float
    done: int


@dataclass
class Load:
    """A command from its start to its end, as a list of observations."""

    engine: str
    looks: list[Look]
    total: float

    def __post_init__(self) -> None:
        self.samples = max(look.done for look in self.looks)
        # Only while results arrive: starting, writing tables and ending are not counted.
        self.busy = [look for look in self.looks if 0 < look.done < self.samples]

    @property
    def rate(self) -> float:
        first, last = self.busy[0], self.busy[-1]
        return (last.done - first.done) / (last.seconds - first.seconds)

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes per sample."""
        first, last = self.busy[0], self.busy[-1]
        return (last.cpu - first.cpu) / (last.done - first.done)

    def memory(self, share: float) -> float:
        """Gigabytes at the time when a share of the samples was finished."""
        return min(self.busy, key=lambda look: abs(look.done / self.samples - share)).memory / 1e9


def look(process: psutil.Process, began: float, out: Path) -> Look:
    memory, cpu = 0, 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            memory += shared_out(each.pid)
            times = each.cpu_times()
            cpu += times.user + times.system
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return Look(time.monotonic() - began, memory, cpu, finished(out))


def shared_out(pid: int) -> int:
    """Bytes of a process, with shared pages divided among their processes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def finished(out: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(out / "results"))


def measure(name: str, samples: int, out: Path, every: float) -> Load:
    """Run an engine and observe it until it ends."""
    shutil.rmtree(out, ignore_errors=True)
    each = -(-samples // (len(MODELS) * len(SETS)))
    data = [word for one in SETS for word in ("--data", one)]
    words = ["eval", *MODELS, *data, "--limit", str(each), "--max-new-tokens", "16", "--batch-size", "16"]
    line = [sys.executable, "-m", "floatlens", *words, *ENGINES[name], "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    began = time.monotonic()
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment)
    watched = psutil.Process(running.pid)
    looks: list[Look] = []
    while running.poll() is None:
        looks.append(look(watched, began, out))
        time.sleep(every)
    if running.returncode:
        raise SystemExit(f"{name}: the command ended with code {running.returncode}")
    found = Load(name, looks, time.monotonic() - began)
    if len(found.busy) < 3:
        raise SystemExit(f"{name}: finished too soon to measure a rate; use more --samples or a smaller --every")
    return found


def draw(found: list[Load], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for one in found:
        times = [look.seconds for look in one.looks]
        left.plot(times, [look.memory / 1e9 for look in one.looks], label=one.engine)
        right.plot(times, [look.done for look in one.looks], label=f"{one.engine}: {one.rate:.1f} per second")
    left.set(xlabel="seconds", ylabel="memory of all processes, GB", ylim=(0, None))
    right.set(xlabel="seconds", ylabel="finished samples")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("load"))
    parser.add_argument("--figure", type=Path, help="file of the figure; default: load.png in --out")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two observations")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    busy = os.getloadavg()[0]
    found = [measure(name, given.samples, given.out / name.replace(" ", "-"), given.every) for name in ENGINES]
    (given.out / "load.json").write_text(json.dumps([asdict(one) for one in found]))
    draw(found, given.figure or given.out / "load.png")
    print("| | samples | per second | CPU ms per sample | seconds in total | GB at 25 % | GB at 50 % | GB at 95 % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for one in found:
        sizes = " | ".join(f"{one.memory(share):.2f}" for share in (0.25, 0.5, 0.95))
        print(f"| {one.engine} | {one.samples} | {one.rate:.1f} | {1000 * one.cpu:.1f} | {one.total:.0f} | {sizes} |")
    local, ray = found
    print(f"Ray / local: {ray.rate / local.rate:.2f} by rate, {local.cpu / ray.cpu:.2f} by CPU time", end="")
    print(f" (load of the machine before: {busy:.1f})")


if __name__ == "__main__":
    main()
