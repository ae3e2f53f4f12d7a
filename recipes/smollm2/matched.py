"""Train the matched models of recipes/results/PLAN.md: objective × mask, and where the sink's token comes from.

    python matched.py --data DATA --out OUT                 every run that is not finished, in the order of RUNS
    python matched.py open-masked-0 --data DATA --out OUT   one run

All runs start from SmolLM2 with a new adapter and read the same rows; an interrupted run goes on where it was.
About an hour each on one quiet core in bfloat16.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from network import fast_dtype
from rows import MatchedRows, Rows
from train import Run

TOKENS, COOLDOWN, BATCH, RATE = 750_000, 150_000, 1024, 5e-4
KEPT_EVERY = 50_000  # tokens between the adapters that open-masked-0 keeps


@dataclass(frozen=True)
class Matched:
    """One run: the way to attend and to learn, the seed, and what is changed in the rows."""

    mode: str
    seed: int
    rows: str = "matched"


RUNS = {
    "open-masked-0": Matched("mdm", 0),
    "causal-masked-0": Matched("causal-masked", 0),
    "causal-next-0": Matched("arm", 0),
    "open-masked-1": Matched("mdm", 1),
    "causal-masked-1": Matched("causal-masked", 1),
    "causal-next-1": Matched("arm", 1),
    "no-commas-0": Matched("mdm", 0, "no-commas"),
    "no-prefix-0": Matched("mdm", 0, "no-prefix"),
    "random-prefix-0": Matched("mdm", 0, "random-prefix"),
}


class MatchedRun(Run):
    """A run of `train.Run` on matched rows that counts the tokens that bear a loss."""

    def __init__(self, args: argparse.Namespace, matched: Matched) -> None:
        self.matched = matched
        super().__init__(args)

    def read_rows(self, lens: Any) -> Rows:
        return MatchedRows(lens, self.args.data, seed=self.matched.seed, variant=self.matched.rows)

    def keep_marks(self, before: int) -> None:
        if self.args.name == "open-masked-0" and before // KEPT_EVERY < self.state["tokens"] // KEPT_EVERY:
            self.network.save(self.out / f"at-{self.state['tokens'] // KEPT_EVERY * KEPT_EVERY}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"runs, by default all of them: {', '.join(RUNS)}")
    parser.add_argument("--data", type=Path, required=True, help="folder of Natural Questions, WikiText and the novels")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs, one folder per run in it")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens to train on; less only to try it")
    args = parser.parse_args()
    if unknown := set(args.names) - RUNS.keys():
        parser.error(f"unknown run {sorted(unknown)[0]!r}; the runs are {', '.join(RUNS)}")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)
    for name in args.names or RUNS:
        out = args.out / name
        if (out / "final").exists():
            continue
        settings = argparse.Namespace(
            mode=RUNS[name].mode, name=name, data=args.data, out=out, start=None, seen=0, tokens=args.tokens,
            cooldown=min(COOLDOWN, args.tokens // 5), batch=BATCH, lr=RATE, open_by=0, every=10, validate_every=200,
            seed=RUNS[name].seed, dtype=str(fast_dtype()).removeprefix("torch."),
        )  # fmt: skip
        print(name, flush=True)
        MatchedRun(settings, RUNS[name]).train()


if __name__ == "__main__":
    main()
