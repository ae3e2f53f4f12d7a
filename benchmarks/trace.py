"""The cost of tracing: a default trace compared with plain generation and with the naive method.

    python -m benchmarks.trace              ratios of CPU time
    python -m benchmarks.trace --only small one group of rows: diffusion, small, smollm2
    python -m benchmarks.trace --memory     peak memory by length

Plain generation is the same sampler and model with SDPA. The naive method does not use FloatLens: eager attention,
output_attentions=True at every step, and copies of the matrices.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import floatlens
from benchmarks.measure import interleaved
from tests.models import checkpoints

NEW = 32
TARGETS = {
    "diffusion, 256 + 32 tokens": 1.15,
    "diffusion, 1024 + 32 tokens": 1.25,
    "small, 256 + 32 tokens": 1.2,
    "small, 1024 + 32, 8 steps": 1.5,
    "smollm2, 480 + 32 tokens": 1.12,
}


def random_ids(length: int, vocabulary: int) -> list[int]:
    return torch.randint(3, vocabulary - 2, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def naive(lens: floatlens.Lens, ids: list[int], **settings: int) -> Any:
    """Generate with eager attention, and copy every matrix of every step."""
    implementation = lens.model.config._attn_implementation
    lens.model.set_attn_implementation("eager")
    # The copies of a step are dropped at the next: all of them together would be gigabytes.
    hook = lens.model.register_forward_hook(
        lambda module, args, kwargs, out: [a.float().cpu().clone() for a in out.attentions] and None, with_kwargs=True
    )
    ask = lens.model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "output_attentions": True}), with_kwargs=True
    )
    try:
        lens.generate([ids], max_new_tokens=NEW, **settings)
    finally:
        hook.remove()
        ask.remove()
        lens.model.set_attn_implementation(implementation)


def compare(lens: floatlens.Lens, length: int, rounds: int, **settings: int) -> dict[str, float]:
    ids = random_ids(length, lens.shape["vocabulary"] or 0)
    ways = {
        "plain": lambda: lens.generate([ids], max_new_tokens=NEW, **settings),
        "trace": lambda: lens.trace(ids, max_new_tokens=NEW, **settings),
    }
    taken = interleaved(ways, rounds) | interleaved({"naive": lambda: naive(lens, ids, **settings)}, 1)
    return taken | {"ratio": taken["trace"] / taken["plain"]}


def model(folder: Path, **sizes: int) -> floatlens.Lens:
    """8 layers, width 256, 8 heads, random weights."""
    made = checkpoints.llada(folder, width=256, layers=8, heads=8, context=20000, **({"vocab": 2048} | sizes))
    return floatlens.load(str(made), dtype="float32")


def speed(rounds: int, only: str | None = None) -> Iterator[dict[str, Any]]:
    few = max(3, rounds // 2)
    with tempfile.TemporaryDirectory() as folder:
        if only in (None, "diffusion"):
            lens = model(Path(folder) / "large")
            yield {"case": "diffusion, 256 + 32 tokens", **compare(lens, 256, rounds)}
            yield {"case": "diffusion, 1024 + 32 tokens", **compare(lens, 1024, few)}
        if only in (None, "small"):  # mostly attention: a small MLP and vocabulary
            lens = model(Path(folder) / "small", vocab=4096, mlp=704)
            yield {"case": "small, 256 + 32 tokens", **compare(lens, 256, rounds)}
            yield {"case": "small, 1024 + 32, 8 steps", **compare(lens, 1024, few, steps=8)}
    if only in (None, "smollm2"):
        try:
            lens = floatlens.load("smollm2")
        except floatlens.FloatLensError as error:
            print(f"left out: {error}")
        else:
            lens.end_ids = ()  # random tokens may end early; all methods must write the same number of tokens
            yield {"case": "smollm2, 480 + 32 tokens", **compare(lens, 480, few)}


def memory() -> list[dict[str, Any]]:
    """Peak memory of one traced step by length, each in a separate process."""
    import subprocess
    import sys

    code = (
        "import resource, sys, tempfile, torch; from pathlib import Path; from benchmarks.trace import model, random_ids\n"
        "torch.set_num_threads(1); length = int(sys.argv[1]); traced = sys.argv[2] == 'trace'\n"
        "lens = model(Path(tempfile.mkdtemp())); ids = random_ids(length, 2048)\n"
        "lens.generate([ids[:64]], max_new_tokens=4, steps=1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "(lens.trace(ids, max_new_tokens=4, steps=1) if traced else lens.generate([ids], max_new_tokens=4, steps=1))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)"
    )
    rows = []
    for length in (1024, 2048, 4096, 8192):
        peaks = {
            way: float(
                subprocess.run([sys.executable, "-c", code, str(length), way], capture_output=True, text=True).stdout
            )
            for way in ("plain", "trace")
        }
        matrix = 8 * length**2 * 4 / 2**20
        rows.append({"positions": length, **peaks, "matrices": matrix})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("diffusion", "small", "smollm2"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: Iterable[dict[str, Any]] = memory() if options.memory else speed(options.rounds, options.only)
    if options.json:
        print(json.dumps([*rows]))
    elif options.memory:
        print("MiB above the start        plain    trace   one layer's matrices would be")
        for row in rows:
            print(
                f"{row['positions']:>9} positions {row['plain']:>11.0f} {row['trace']:>8.0f} {row['matrices']:>10.0f}"
            )
    else:
        print("CPU seconds                    plain    trace    naive   trace/plain  naive/plain  target")
        for row in rows:
            naive_ratio = row["naive"] / row["plain"]
            print(
                f"{row['case']:<28} {row['plain']:>7.2f} {row['trace']:>8.2f} {row['naive']:>8.2f} "
                f"{row['ratio']:>12.2f} {naive_ratio:>12.2f} {TARGETS[row['case']]:>7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
