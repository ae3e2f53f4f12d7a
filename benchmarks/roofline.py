"""How much can batches gain? The arithmetic that a model reaches with one question, beside what the machine can do.

    python -m benchmarks.roofline [MODEL...] [--batch-size 32] [--rounds 3]

One thread, CPU time. `peak` is the rate of a large matrix product. A pass over one question multiplies each weight with as
many rows as it has tokens: all positions in a diffusion model, one in an autoregressive model. The more rows, the closer a
single question is to the peak, and peak over rate is the most that batches can gain by arithmetic alone.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

import floatlens as fl
from benchmarks.measure import cpu_seconds
from floatlens.store.estimate import measure_model, operations

NEW = 32


def peak(rounds: int, size: int = 1024) -> float:
    """Operations per second of a large matrix product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / cpu_seconds(lambda: a @ b, 5 * rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["tiny-mdm", "tiny-arm"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    best = peak(chosen.rounds)
    print(f"peak: {best / 1e9:.0f} GFLOP/s")
    sample = next(iter(fl.read("world:fresh", limit=1, passages=5)))
    for name in chosen.models:
        lens = fl.load(name)
        lens.end_ids = ()  # every question takes all steps
        prompt = lens.prompt(sample.question, sample.passages)
        size = measure_model(lens.checkpoint, "float32")
        flops, _ = operations(size, len(prompt.ids), NEW, NEW)
        rates = {}
        for count in (1, chosen.batch_size):
            answer = partial(lens.generate, [prompt] * count, max_new_tokens=NEW)
            rates[count] = count * flops / cpu_seconds(answer, chosen.rounds)
        one, many = rates[1], rates[chosen.batch_size]
        rows = len(prompt.ids) + NEW if not size.cached else 1
        print(
            f"{name}: {flops / 1e9:.2f} GFLOP per question, {rows} rows per product; one at a time {one / 1e9:.1f} GFLOP/s "
            f"({100 * one / best:.0f} % of the peak), in batches of {chosen.batch_size} {many / 1e9:.1f} "
            f"({100 * many / best:.0f} %): {many / one:.1f} times; at the peak it would be {best / one:.1f} times"
        )


if __name__ == "__main__":
    main()
