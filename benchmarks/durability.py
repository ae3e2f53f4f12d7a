"""Durability: thousands of questions through `floatlens eval` while its workers are killed at random moments.

    python -m benchmarks.durability --samples 10000 --out durability

Prints how many results were lost, doubled or failed (all should be 0) and the memory of the main process and of the
workers during the run (both should be flat), and writes durability.json. The exit code is 1 if a result was lost or doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import psutil

from floatlens.store.folder import RunFolder


@dataclass
class Moment:
    """The state of the running command: seconds since its start, finished samples, bytes of both kinds of processes."""

    seconds: float
    done: int
    main_bytes: int
    worker_bytes: int  # mean over the workers that run


def write_questions(path: Path, count: int) -> list[str]:
    """A data set of short questions; returns their ids."""
    ids = [f"q{number}" for number in range(count)]
    rows = ({"id": id_, "question": f"Where does number {id_} live?", "answers": ["Rusk"]} for id_ in ids)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ids


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children(recursive=True):
        try:
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def run_and_kill(line: list[str], out: Path, kills: list[int], chance: random.Random) -> list[Moment]:
    """Run a command and kill one of its workers whenever that many samples are finished; returns its moments."""
    moments: list[Moment] = []
    began = time.monotonic()
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    main = psutil.Process(running.pid)
    left = sorted(kills)
    while running.poll() is None:
        workers = workers_of(main)
        done = sum(len(files) for _, _, files in os.walk(out / "results"))
        sizes = [size for worker in workers if (size := resident_bytes(worker))]
        mean = sum(sizes) // len(sizes) if sizes else 0
        moments.append(Moment(time.monotonic() - began, done, resident_bytes(main), mean))
        if left and done >= left[0] and workers:
            chance.choice(workers).kill()
            left.pop(0)
        time.sleep(0.1)
    if left:
        raise SystemExit(f"{len(left)} kills came too late; use more --samples or fewer --kills")
    if running.returncode:
        raise SystemExit(f"the command ended with code {running.returncode}")
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=50, help="number of workers killed, at random numbers of results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("durability"))
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    data, run = given.out / "questions.jsonl", given.out / "run"
    ids = write_questions(data, given.samples)
    words = ["eval", "tiny-arm", "--data", str(data), "--closed-book", "--max-new-tokens", "2", "--batch-size", "32"]
    line = [sys.executable, "-m", "floatlens", *words, "--engine", f"local:{given.workers}", "--out", str(run)]
    chance = random.Random(given.seed)
    moments = run_and_kill(line, run, chance.sample(range(1, given.samples * 9 // 10), given.kills), chance)
    results = RunFolder.open(run).results()
    counts = Counter(result.key[-1] for result in results)
    rows = Counter(pd.read_parquet(run / "answers.parquet")["id"])
    lost = sum(id_ not in counts or id_ not in rows for id_ in ids)
    doubled = sum(count > 1 for table in (counts, rows) for count in table.values())
    failed = sum(bool(result.value.get("error")) for result in results)
    busy = [moment for moment in moments if 0 < moment.done < given.samples] or moments

    def megabytes(share: float, kind: str) -> str:
        moment = min(busy, key=lambda each: abs(each.done / given.samples - share))
        return f"{getattr(moment, kind) / 1e6:.0f}"

    print(
        "| samples | kills | lost | doubled | failed | seconds | main MB at 25, 50, 95 % | worker MB at 25, 50, 95 % |"
    )
    print("|---:|---:|---:|---:|---:|---:|---|---|")
    sizes = [
        ", ".join(megabytes(share, kind) for share in (0.25, 0.5, 0.95)) for kind in ("main_bytes", "worker_bytes")
    ]
    numbers = [given.samples, given.kills, lost, doubled, failed, round(moments[-1].seconds), *sizes]
    print("| " + " | ".join(map(str, numbers)) + " |")
    (given.out / "durability.json").write_text(json.dumps([asdict(moment) for moment in moments]))
    if lost or doubled:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
