"""Cost of interventions: masks and scales compared with plain generation, those that find anchors with a trace.

    python -m benchmarks.interventions

Medians of CPU time, measured alternately in one process (benchmarks/measure.py). Models are those of benchmarks/trace.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import floatlens
from benchmarks.measure import interleaved
from benchmarks.trace import NEW, model, random_ids

CHEAP = (
    "mask-positions(0)",
    "mask-positions([0, 7, 30])",
    "scale-attention(2)",
    "scale-attention(2, positions=0:8)",
    "ablate-heads([0.1, 3.2])",
    "add-sink(2)",
    "soft-cap(10)",
)
FINDING = ("mask-anchors(sigma(3))", "mask-anchors(top(4))", "pin-anchors", "scale-attention(2, rule=sigma(3))")
TARGETS = {"plain": 1.5, "trace": 1.6}


def compare(lens: floatlens.Lens, length: int, rounds: int) -> list[dict[str, Any]]:
    ids = random_ids(length, lens.shape["vocabulary"] or 0)

    def generate(spec: str) -> None:
        with lens.intervene(spec):
            lens.generate([ids], max_new_tokens=NEW)

    ways: dict[str, Any] = {
        "plain": lambda: lens.generate([ids], max_new_tokens=NEW),
        "trace": lambda: lens.trace(ids, max_new_tokens=NEW),
    }
    ways |= {spec: (lambda spec=spec: generate(spec)) for spec in (*CHEAP, *FINDING)}
    taken = interleaved(ways, rounds)
    rows = []
    for spec in (*CHEAP, *FINDING):
        beside = "trace" if spec in FINDING else "plain"
        ratio = taken[spec] / taken[beside]
        rows.append({"intervention": spec, "seconds": taken[spec], "beside": beside, "ratio": ratio})
    return [{"plain": taken["plain"], "trace": taken["trace"], **row} for row in rows]


def speed(rounds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        lens = model(Path(folder))
        rows += [{"case": "diffusion, 256 + 32 tokens", **row} for row in compare(lens, 256, rounds)]
        rows += [{"case": "diffusion, 1024 + 32 tokens", **row} for row in compare(lens, 1024, max(3, rounds // 2))]
    try:
        lens = floatlens.load("smollm2")
    except floatlens.FloatLensError as error:
        print(f"left out: {error}")
    else:
        lens.end_ids = ()
        rows += [{"case": "smollm2, 480 + 32 tokens", **row} for row in compare(lens, 480, max(3, rounds // 2))]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = speed(options.rounds)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'CPU seconds':<30}{'intervention':<36}{'taken':>7}{'ratio':>7}  target")
    for row in rows:
        target = f"{TARGETS[row['beside']]} of a {row['beside']}" if row["beside"] == "trace" else "1.5 of plain"
        print(f"{row['case']:<30}{row['intervention']:<36}{row['seconds']:>7.2f}{row['ratio']:>7.2f}  {target}")


if __name__ == "__main__":
    main()
