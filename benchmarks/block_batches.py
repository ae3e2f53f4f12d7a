"""CPU time of a batch of a model that writes in blocks, compared with its prompts one by one.

    python -m benchmarks.block_batches [--rows 8] [--rounds 5]

The models have random weights in SDAR's and LLaDA2's layouts; prompts have different lengths. With SDAR's static strategy
all rows have the same number of steps per block; with its dynamic strategy the number differs, and rows wait for each other.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import floatlens as fl
from benchmarks.measure import interleaved
from tests.models import checkpoints

CASES: dict[str, tuple[Callable[[Path], Path], dict[str, Any], dict[str, Any]]] = {
    "sdar, static": (checkpoints.sdar, {}, {"remasking_strategy": "low_confidence_static"}),
    "sdar, dynamic": (checkpoints.sdar, {}, {"confidence_threshold": 0.3}),
    "llada2": (checkpoints.llada2, {}, {"threshold": 0.3, "block_length": 8}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 50) for _ in range(draw.randint(8, 64))] for _ in range(chosen.rows)]
    for name, (make, options, settings) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            lens = fl.load(str(make(Path(folder) / "model")), dtype="float32", **options)
            lens.__dict__["end_ids"] = ()
            asked = settings | {"max_new_tokens": chosen.new}

            def alone(lens: fl.Lens = lens, asked: dict[str, Any] = asked) -> list[fl.Generation]:
                return [lens.generate([prompt], sampler=asked)[0] for prompt in prompts]

            def together(lens: fl.Lens = lens, asked: dict[str, Any] = asked) -> list[fl.Generation]:
                return lens.generate(prompts, sampler=asked)

            same = [one.ids for one in alone()] == [one.ids for one in together()]
            found = interleaved({"alone": alone, "together": together}, rounds=chosen.rounds)
            print(
                f"{name}: {found['alone'] / found['together']:.1f} times less CPU time in a batch of {chosen.rows}; "
                f"tokens {'equal' if same else 'DIFFER'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
