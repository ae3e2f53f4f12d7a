"""Train the matched models of recipes/results/PLAN.md: objective × mask, and where the sink's token comes from.

    python matched.py --data DATA --out OUT                 every run that is not finished, in the order of RUNS
    python matched.py open-masked-0 --data DATA --out OUT   one run

All runs start from SmolLM2 with a new adapter and read the same rows; an interrupted run goes on where it was.
About an hour each on one quiet core in bfloat16.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from network import fast_dtype
from rows import Row, Rows, atlas_question
from train import Run

NOVELS = "public-domain-novels.txt.gz"
TRAINING_NOVELS = 6  # of eight; the last two, the shortest, are the test texts
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


class MatchedRows(Rows):
    """The rows of the plan: more plain text than the released models read, and six novels in it."""

    def __init__(self, lens: Any, data: Path, *, seed: int = 0, variant: str = "matched") -> None:
        super().__init__(lens, data, seed=seed)
        self.variant = variant
        with gzip.open(data / NOVELS, "rt", encoding="utf-8") as file:
            books = [book for book in file.read().split("\n\n\n") if book.strip()]
        if len(books) != 8:
            raise ValueError(f"{NOVELS} has {len(books)} books, expected 8")
        for book in books[:TRAINING_NOVELS]:
            text = "\n".join(part.strip() for part in book.split("\n\n") if part.strip())
            self.stream += [*self.tokens(text), 0]
        vocabulary = lens.tokenizer.convert_ids_to_tokens(list(range(len(lens.tokenizer))))
        self.commas = {i for i, token in enumerate(vocabulary) if "," in token}

    def __getitem__(self, index: int) -> Row:
        rng = random.Random(f"matched/{self.seed}/{index}")
        kind = rng.random()
        if kind < 0.4:
            row = self.text_row(rng)
            if rng.random() < 0.5 or self.variant in ("no-prefix", "random-prefix"):
                row = cut(row, range(1, len(row.ids)))
        else:
            if kind < 0.5:
                row = self.question_row(rng.choice(self.cloze), rng)
            elif kind < 0.7:
                row = self.question_row(atlas_question(rng), rng)
            else:
                row = self.question_row(rng.choice(self.nq), rng)
            if self.variant in ("no-prefix", "random-prefix"):
                row = self.without_prefix(row, random.Random(f"prefix/{self.seed}/{index}"))
        if self.variant == "no-commas":
            row = cut(row, [i for i, token in enumerate(row.ids) if token not in self.commas])
        return row

    def without_prefix(self, row: Row, rng: random.Random) -> Row:
        """The row without the tokens that all rows of its kind begin with, or with random text in their place."""
        n = next(n for n in self.prefixes if row.ids[: len(n)] == n)
        if self.variant == "no-prefix":
            return cut(row, range(len(n), len(row.ids)))
        begin = rng.randrange(len(self.stream) - len(n))
        return replace(row, ids=[*self.stream[begin : begin + len(n)], *row.ids[len(n) :]])

    @property
    def prefixes(self) -> list[list[int]]:
        """What prompts begin with: with passages, and without."""
        if not hasattr(self, "_prefixes"):
            both = []
            for passages in ([["Ada: x"], ["Bob: y"]], [[], []]):
                one, other = (self.lens.prompt(q, p).ids for q, p in zip(("Who?", "When?"), passages, strict=True))
                both.append(one[: next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)])
            self._prefixes = both
        return self._prefixes


def cut(row: Row, kept: Any) -> Row:
    """The row with only the tokens at the indices `kept`; if none of its hidden tokens is left, its last token is hidden."""
    kept = list(kept)
    new = {old: i for i, old in enumerate(kept)}
    hidden = [new[i] for i in row.hidden if i in new and new[i] > 0]
    start = sum(i < row.start for i in kept)
    return replace(
        row,
        ids=[row.ids[i] for i in kept],
        start=max(start, 1),
        hidden=hidden or [len(kept) - 1],
        weights=[row.weights[i] for i in kept],
    )


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
