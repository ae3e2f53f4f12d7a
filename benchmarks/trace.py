"""The cost of tracing: a default trace compared with plain generation and with the naive method.

    python -m benchmarks.trace                      all rows, with one thread and with all of them
    python -m benchmarks.trace --only small --threads 1 --rounds 3
    python -m benchmarks.trace --memory             peak memory of a traced step by length

Medians of CPU time, all three in turn. Plain generation is the same sampler and model with SDPA. The naive method does not
use FloatLens: eager attention, output_attentions=True at every step, and copies of the matrices.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import floatlens
from benchmarks.measure import interleaved
from tests.models import checkpoints

NEW = 32
# name: (model, length of a prompt, prompts, settings)
ROWS: dict[str, tuple[str, int, int, dict[str, int]]] = {
    "diffusion, 256 + 32": ("large", 256, 1, {}),
    "diffusion, 1024 + 32": ("large", 1024, 1, {}),
    "small, 256 + 32": ("small", 256, 1, {}),
    "small, 1024 + 32, 8 steps": ("small", 1024, 1, {"steps": 8}),
    "small, 8 prompts of 128 + 32, 8 steps": ("small", 128, 8, {"steps": 8}),
    "arm, 2048 + 32, cached": ("arm", 2048, 1, {}),
    "smollm2, 480 + 32": ("smollm2", 480, 1, {}),
}


def random_ids(length: int, vocabulary: int) -> list[int]:
    return torch.randint(3, vocabulary - 2, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def model(folder: Path, name: str) -> floatlens.Lens:
    """8 layers, width 256, 8 heads, random weights: `small` has a small MLP, so it is mostly attention."""
    if name == "smollm2":
        return floatlens.load(name)
    made = folder / name
    if name == "arm":
        config = transformers.LlamaConfig(
            vocab_size=4096, hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=8, max_position_embeddings=20000,
        )  # fmt: skip
        transformers.LlamaForCausalLM(config).save_pretrained(made)
    else:
        sizes = {"vocab": 4096, "mlp": 704} if name == "small" else {"vocab": 2048}
        checkpoints.llada(made, width=256, layers=8, heads=8, context=20000, **sizes)
    return floatlens.load(str(made), dtype="float32")


def naive(lens: floatlens.Lens, prompts: list[list[int]], **settings: int) -> None:
    """Generate with eager attention, and copy every matrix of every step."""
    implementation = lens.model.config._attn_implementation
    lens.model.set_attn_implementation("eager")
    # The copies of a step are dropped at the next: all of them together would be gigabytes.
    hooks = [
        lens.model.register_forward_hook(lambda _, __, out: [a.float().clone() for a in out.attentions] and None),
        lens.model.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "output_attentions": True}), with_kwargs=True
        ),
    ]
    try:
        lens.generate(prompts, max_new_tokens=NEW, **settings)
    finally:
        for hook in hooks:
            hook.remove()
        lens.model.set_attn_implementation(implementation)


def compare(lens: floatlens.Lens, length: int, count: int, rounds: int, **settings: int) -> dict[str, float]:
    """Median CPU seconds of each way."""
    lens.end_ids = ()  # random tokens may end early; all methods must write the same number of tokens
    prompts = [random_ids(length, lens.shape["vocabulary"] or 0)] * count
    ways = {
        "plain": lambda: lens.generate(prompts, max_new_tokens=NEW, **settings),
        "trace": lambda: lens.traces(prompts, max_new_tokens=NEW, **settings),
        "naive": lambda: naive(lens, prompts, **settings),
    }
    return interleaved(ways, rounds)


def speed(rounds: int, only: str, threads: list[int]) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        lenses: dict[str, floatlens.Lens] = {}
        for case, (name, length, count, settings) in ROWS.items():
            if only not in case:
                continue
            try:
                lenses[name] = lenses.get(name) or model(Path(folder), name)
            except floatlens.FloatLensError as error:
                print(f"left out: {error}")
                continue
            for number in threads:
                torch.set_num_threads(number)
                yield {"case": case, "threads": number, **compare(lenses[name], length, count, rounds, **settings)}


def memory() -> Iterator[dict[str, float]]:
    """Peak memory in MiB of one traced step by length, each in a separate process."""
    code = (
        "import resource, sys, tempfile, torch; from pathlib import Path; from benchmarks.trace import model, random_ids\n"
        "torch.set_num_threads(1); length = int(sys.argv[1]); traced = sys.argv[2] == 'trace'\n"
        "lens = model(Path(tempfile.mkdtemp()), 'large'); ids = random_ids(length, 2048)\n"
        "lens.generate([ids[:64]], max_new_tokens=4, steps=1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "(lens.trace(ids, max_new_tokens=4, steps=1) if traced else lens.generate([ids], max_new_tokens=4, steps=1))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)"
    )
    for length in (1024, 2048, 4096, 8192):
        row = {"positions": length, "matrices": 8 * length**2 * 4 / 2**20}
        for way in ("plain", "trace"):
            command = [sys.executable, "-c", code, str(length), way]
            row[way] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = memory() if options.memory else speed(options.rounds, options.only, options.threads)
    if options.json:
        print(json.dumps([*rows]))
    elif options.memory:
        print("MiB above the start        plain    trace   one layer's matrices would be")
        for row in rows:
            print(
                f"{row['positions']:>9} positions {row['plain']:>11.0f} {row['trace']:>8.0f} {row['matrices']:>10.0f}"
            )
    else:
        print(f"{'CPU seconds':<38} threads   plain   trace   naive  trace/plain  trace/naive")
        for row in rows:
            plain, trace, eager = row["plain"], row["trace"], row["naive"]
            seconds = f"{plain:>7.2f} {trace:>7.2f} {eager:>7.2f}"
            ratios = f"{trace / plain:>12.2f} {trace / eager:>12.2f}"
            print(f"{row['case']:<38} {row['threads']:>7} {seconds} {ratios}", flush=True)


if __name__ == "__main__":
    main()
