"""Speed of `floatlens eval` in batches, compared with one question at a time.

    python -m benchmarks.eval [MODEL...] [--data world:fresh] [--questions 64] [--batch-size 32] [--rounds 3]

Both run alternately in one process, on the same questions; the ratio is that of the medians of questions per second.
The answers must be equal.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import floatlens
from floatlens.data.read import read
from floatlens.evaluation.sources import CLOSED, OPEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["tiny-mdm", "tiny-arm"])
    parser.add_argument("--data", default="world:fresh")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    samples = list(read(chosen.data, limit=chosen.questions, passages=chosen.passages))
    ways = {"one at a time": 1, f"batches of {chosen.batch_size}": chosen.batch_size}
    for name in chosen.models:
        lens = floatlens.load(name)
        for condition in (OPEN, CLOSED):
            rates: dict[str, list[float]] = {way: [] for way in ways}
            answers: dict[str, list[str]] = {}
            settings = {"closed_book": condition == CLOSED, "max_new_tokens": chosen.max_new_tokens}
            floatlens.evaluate(lens, samples[: chosen.batch_size], batch_size=chosen.batch_size, **settings)  # warm up
            for _ in range(chosen.rounds):
                for way, size in ways.items():
                    began = time.perf_counter()
                    table = floatlens.evaluate(lens, samples, batch_size=size, **settings)
                    rates[way].append(len(table) / (time.perf_counter() - began))
                    answers[way] = list(table["answer"])
            one, many = (statistics.median(rates[way]) for way in ways)
            same = len({tuple(found) for found in answers.values()}) == 1
            print(
                f"{name}, {condition}: {one:.1f} questions/s one at a time, {many:.1f} in batches of "
                f"{chosen.batch_size}: {many / one:.1f} times; answers {'equal' if same else 'DIFFER'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
