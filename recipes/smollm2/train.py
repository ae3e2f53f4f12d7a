"""Train the three SmolLM2 models: one base, one set of rows, three ways to attend.

    python train.py canvas --data DATA --out OUT/canvas --tokens 600000
    python train.py mdm    --data DATA --out OUT/mdm --start OUT/canvas --tokens 2000000
    python train.py arm    --data DATA --out OUT/arm --tokens 80000

    arm      causal; the loss is that of the next token, on the answer
    canvas   the prompt causal and run by the unchanged model; its last token and the places of the answer run with the
             adapter and see the prompt and each other; the loss is on hidden tokens
    mdm      every token sees every token; the loss is on hidden tokens, of the answer and of the passages

Row j - 1 writes token j in all of them. The same command resumes an interrupted run. The learning rate is constant after
a warm-up; when the tokens are seen, or when a file named STOP appears in the folder, it falls to zero over `--cooldown`
tokens and the final adapter is written to OUT/final. With `--seen`, the run continues a former one of which only the
adapter was kept: the rows and the count go on, with a new warm-up of the optimiser. About 200 tokens per second on one
EPYC core in bfloat16, 125 in float32.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from network import Network, attention, fast_dtype, positions_of
from rows import Row, Rows, atlas_question, hidden_places
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import floatlens as fl

MARKS = (0, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)  # shares of --tokens at which mdm keeps its adapter
REPLAYED, WINDOW = 12, 300  # canvas: earlier rows that are denoised again in each step, and how far back they may lie
WARM_UP = 30  # steps
Loss = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # loss, weight, whether it is an answer's token; one per target


def targets_of(x_NW: torch.Tensor, network: Network, at: list[int], ids: list[int], weights: list[float]) -> Loss:
    """Losses of the tokens `ids`, written by the rows `at`."""
    loss = F.cross_entropy(network.logits(x_NW[at]), torch.tensor(ids), reduction="none")
    weight = torch.tensor(weights)
    return loss, weight, weight == 1.0


def whole_rows(network: Network, rows: Sequence[Row], *, mode: str, openness: float) -> Loss:
    """Losses of the arm, of the mdm, or of `causal-masked`, which hides tokens as the mdm does and attends as the arm does.

    Of the mdm's rows a share `openness` sees everything from the prompt too. The others have a causal prompt, as a canvas
    model has, but run with the adapter.
    """
    lengths = [len(row.ids) for row in rows]
    masks: list[torch.Tensor | None] = []
    for row in rows:
        may_see = torch.ones(len(row.ids), len(row.ids), dtype=torch.bool).tril()
        may_see[row.start :] |= mode == "mdm"
        is_open = mode == "mdm" and random.Random(repr(row.ids)).random() < openness
        masks.append(None if is_open else may_see)

    def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), masks, strict=True)
        return torch.cat([attention(*part) for part in parts])

    ids = [i for row in rows for i in row.ids]
    hidden = torch.zeros(len(ids), dtype=torch.bool)
    at, weights, begin = [], [], 0
    for row in rows:
        if mode != "arm":
            chosen = row.hidden
            hidden[[begin + i for i in chosen]] = True
        elif row.source == "text":
            chosen = list(range(1, len(row.ids)))
        else:
            chosen = [i for i in range(row.start, len(row.ids)) if row.weights[i] == 1.0]
        at += [begin + i - 1 for i in chosen]
        weights += [row.weights[i] for i in chosen]
        begin += len(row.ids)
    x_NW = network.layers(network.embed(torch.tensor(ids), hidden), positions_of(lengths), attend)
    return targets_of(x_NW, network, at, [ids[i + 1] for i in at], weights)


Cache = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values (P, K, D) by layer


@torch.no_grad()
def prefill(network: Network, prompts: Sequence[list[int]], *, adapted: bool = False) -> list[Cache]:
    """Keys and values of prompts under causal attention, by default from the unchanged model."""
    lengths = [len(prompt) for prompt in prompts]
    caches: list[Cache] = [[] for _ in prompts]

    def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = []
        for cache, *qkv in zip(caches, q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            cache.append((qkv[1], qkv[2]))
            out.append(attention(*qkv, torch.ones(len(qkv[0]), len(qkv[0]), dtype=torch.bool).tril()))
        return torch.cat(out)

    ids = torch.tensor([i for prompt in prompts for i in prompt])
    network.layers(network.embed(ids), positions_of(lengths), attend, adapted=adapted)
    return caches


def canvas_rows(
    network: Network, caches: Sequence[Cache], canvases: Sequence[list[int]], hidden: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Residual stream of canvases (the last prompt token and the places after it), one after another; see `prefill`."""
    lengths = [len(canvas) for canvas in canvases]

    def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = []
        for cache, q_, k_, v_ in zip(caches, q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            before_k, before_v = cache[i]
            out.append(attention(q_, torch.cat([before_k, k_]), torch.cat([before_v, v_])))
        return torch.cat(out)

    is_hidden = torch.cat([torch.zeros(n, dtype=torch.bool) for n in lengths])
    begin = 0
    for places, n in zip(hidden, lengths, strict=True):
        is_hidden[[begin + i for i in places]] = True
        begin += n
    x_NW = network.embed(torch.tensor([i for canvas in canvases for i in canvas]), is_hidden)
    return network.layers(x_NW, positions_of(lengths, [len(cache[0][0]) for cache in caches]), attend)


def canvas_loss(network: Network, rows: Sequence[Row], caches: Sequence[Cache], masks: Sequence[Sequence[int]]) -> Loss:
    """Losses of one canvas per row; `masks` are its hidden tokens, counted from the beginning of the row."""
    canvases = [row.ids[row.start - 1 :] for row in rows]
    hidden = [[i - row.start + 1 for i in one] for row, one in zip(rows, masks, strict=True)]
    x_NW = canvas_rows(network, caches, canvases, hidden)
    at, ids, weights, begin = [], [], [], 0
    for row, canvas, places in zip(rows, canvases, hidden, strict=True):
        at += [begin + i - 1 for i in places]
        ids += [canvas[i] for i in places]
        weights += [row.weights[row.start - 1 + i] for i in places]
        begin += len(canvas)
    return targets_of(x_NW, network, at, ids, weights)


def canvas_mask(row: Row, rng: random.Random) -> list[int]:
    """Hidden tokens of the canvas of a row, drawn anew."""
    n = len(row.ids) - row.start
    if row.source == "text":
        share = rng.uniform(0.1, 0.9)
        places = [i for i in range(n) if rng.random() < share] or list(range(n))
    else:
        places = hidden_places(sum(w == 1.0 for w in row.weights) - 1, n, rng)
    return [row.start + i for i in places]


class Run:
    """One training run: its folder, its rows, its network and how far it is."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.mode, self.out = args, args.mode, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        lens = fl.load("smollm2")
        self.rows = self.read_rows(lens)
        mask = lens.tokenizer.convert_tokens_to_ids("<empty_output>")
        self.network = Network(lens.model, mask, dtype=getattr(torch, args.dtype), seed=args.seed)
        if args.start:
            self.network.load(args.start)
        self.parameters = [*self.network.parameters(), self.network.mask]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=args.lr, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
        self.caches: dict[int, Cache] = {}  # of the prompts of recent rows, in 16 bits
        self.state = {"row": 0, "step": 0, "tokens": 0, "targets": 0, "seconds": 0.0, "cooling_from": None}
        while self.state["tokens"] < args.seen:  # rows that the adapter of --start has seen
            self.state["tokens"] += sum(len(row.ids) for row in self.next_rows())
        print(f"{len(self.rows.nq)} questions, {len(self.rows.cloze)} gaps, {len(self.rows.stream)} tokens", flush=True)

    def read_rows(self, lens: fl.Lens) -> Rows:
        return Rows(lens, self.args.data, seed=self.args.seed)

    def rate(self) -> float:
        """Factor of the learning rate: warm-up, then constant, then down to zero over the cool-down."""
        if self.state["cooling_from"] is not None:
            return max(0.0, 1 - (self.state["tokens"] - self.state["cooling_from"]) / self.args.cooldown)
        return min(1.0, (self.state["step"] + 1) / WARM_UP)

    def next_rows(self) -> list[Row]:
        """As many rows as the token budget of a step takes."""
        rows: list[Row] = []
        while sum(len(row.ids) for row in rows) < self.args.batch:
            rows.append(self.rows[self.state["row"]])
            self.state["row"] += 1
        return rows

    def losses(self, rows: list[Row]) -> Loss:
        if self.mode == "canvas":
            return self.replayed_losses(len(rows))
        openness = 0.5 + 0.5 * self.state["tokens"] / self.args.open_by if self.args.open_by else 1.0
        return whole_rows(self.network, rows, mode=self.mode, openness=openness)

    def replayed_losses(self, count: int) -> Loss:
        """Losses of the `count` newest rows and of some earlier ones, whose prompts need no second prefill."""
        rng = random.Random(f"{self.args.seed}/{self.state['step']}")
        first = self.state["row"] - count
        oldest = max(0, first - WINDOW)
        indices = [
            *range(first, first + count),
            *(rng.randrange(oldest, first) for _ in range(REPLAYED if first else 0)),
        ]
        missing = [i for i in dict.fromkeys(indices) if i not in self.caches]
        caches = prefill(self.network, [prompt_of(self.rows[i]) for i in missing])
        self.caches = {i: cache for i, cache in self.caches.items() if i >= oldest}
        keep = torch.float16 if self.network.dtype is torch.float32 else self.network.dtype
        for i, cache in zip(missing, caches, strict=True):
            self.caches[i] = [(k.to(keep), v.to(keep)) for k, v in cache]
        rows = [self.rows[i] for i in indices]
        dtype = self.network.dtype
        chosen: list[Cache] = [[(k.to(dtype), v.to(dtype)) for k, v in self.caches[i]] for i in indices]
        return canvas_loss(self.network, rows, chosen, [canvas_mask(row, rng) for row in rows])

    def step(self) -> dict[str, float]:
        began = time.perf_counter()
        for group in self.optimiser.param_groups:
            group["lr"] = self.args.lr * self.rate()
        rows = self.next_rows()
        self.network.merge()
        loss, weight, answers = self.losses(rows)
        ((loss * weight).sum() / weight.sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters[:-1], 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.state["step"] += 1
        self.state["tokens"] += sum(len(row.ids) for row in rows)
        self.state["targets"] += len(loss)
        self.state["seconds"] += time.perf_counter() - began
        text = weight == 0.25
        parts = {"answers": loss[answers], "text": loss[text]}
        return {"norm": float(norm)} | {k: float(v.detach().mean()) for k, v in parts.items() if len(v)}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Loss per answer token of held-out questions with everything masked, and the share of tokens that are right."""
        self.network.merge()
        result = {}
        rng = random.Random(0)
        atlas = [atlas_question(rng, "validation") for _ in range(48)]
        for source, questions in (("nq", self.rows.held_out[:48]), ("atlas", atlas)):
            loss = []
            rows = [self.rows.question_row(q, random.Random(q.question), places=16) for q in questions]
            rows = [all_masked(row) for row in rows]
            for begin in range(0, len(rows), 8):
                part = rows[begin : begin + 8]
                if self.mode == "canvas":
                    caches = prefill(self.network, [prompt_of(row) for row in part])
                    one = canvas_loss(self.network, part, caches, [row.hidden for row in part])
                else:
                    one = whole_rows(self.network, part, mode=self.mode, openness=1.0)
                loss.append(one[0][one[2]])
            if loss:
                joined = torch.cat(loss)
                result[f"{source}_loss"] = float(joined.mean())
                result[f"{source}_half"] = float((joined < 0.6931).float().mean())
        return result

    def save(self) -> None:
        """Write what a resumed run needs; the old state stays until the new one is complete."""
        tensors = {f"parameter.{i}": p.detach() for i, p in enumerate(self.parameters)}
        for i, p in enumerate(self.parameters):
            for name, value in self.optimiser.state.get(p, {}).items():
                tensors[f"{name}.{i}"] = value
        save_file(tensors, self.out / "state.tmp", metadata={"run": json.dumps(self.state)})
        os.replace(self.out / "state.tmp", self.out / "state.safetensors")

    def resume(self) -> bool:
        path = self.out / "state.safetensors"
        if not path.exists():
            return False
        tensors = load_file(path)
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.state = json.loads(header["__metadata__"]["run"])
        for i, p in enumerate(self.parameters):
            p.data.copy_(tensors[f"parameter.{i}"])
            names = [name for name in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{i}" in tensors]
            if names:
                self.optimiser.state[p] = {name: tensors[f"{name}.{i}"] for name in names}
        return True

    def log(self, entry: dict[str, float]) -> None:
        """One line for people, one row for curve.csv."""
        print(" ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in entry.items()), flush=True)
        fields = [
            "tokens",
            "step",
            "targets",
            "answers",
            "text",
            "norm",
            "nq_loss",
            "nq_half",
            "atlas_loss",
            "atlas_half",
            "seconds",
        ]
        path = self.out / "curve.csv"
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields, extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in entry.items()})

    def keep_marks(self, before: int) -> None:
        """Keep the adapter at the marks that lie between `before` and now."""
        for mark in MARKS:
            if before < mark * self.args.tokens <= self.state["tokens"] or (mark == 0 and self.state["tokens"] == 0):
                self.network.save(self.out / f"at-{round(mark * self.args.tokens)}")

    def train(self) -> None:
        if not self.resume():
            self.keep_marks(self.state["tokens"])
        sums: dict[str, list[float]] = {}
        while self.rate() > 0:
            before = self.state["tokens"]
            for key, value in self.step().items():
                sums.setdefault(key, []).append(value)
            self.keep_marks(before)
            over = self.state["tokens"] >= self.args.tokens - self.args.cooldown or (self.out / "STOP").exists()
            if over and self.state["cooling_from"] is None:
                self.state["cooling_from"] = self.state["tokens"]
            if self.state["step"] % self.args.every == 0:
                means = {key: sum(values) / len(values) for key, values in sums.items()}
                sums.clear()
                entry = {k: self.state[k] for k in ("step", "tokens", "targets", "seconds")} | means
                self.log(entry | (self.validate() if self.state["step"] % self.args.validate_every == 0 else {}))
                self.save()
                self.network.save(self.out / "latest")
        self.log({k: self.state[k] for k in ("step", "tokens", "targets", "seconds")} | self.validate())
        self.save()
        self.network.save(self.out / "final")
        (self.out / "final" / "curve.csv").write_bytes((self.out / "curve.csv").read_bytes())


def prompt_of(row: Row) -> list[int]:
    """The part of a row that a canvas model prefills: the prompt without its last token."""
    return row.ids[: row.start - 1]


def all_masked(row: Row) -> Row:
    """The row as a sampler first sees it."""
    return Row(row.ids, row.start, list(range(row.start, len(row.ids))), row.weights, row.source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("arm", "canvas", "mdm"))
    parser.add_argument("--data", type=Path, required=True, help="folder of the Natural Questions and WikiText files")
    parser.add_argument("--out", required=True, help="folder of the run")
    parser.add_argument("--start", type=Path, help="adapter to start from")
    parser.add_argument(
        "--seen",
        type=int,
        default=0,
        help="tokens that the adapter of --start was trained on; training continues there",
    )
    parser.add_argument("--tokens", type=int, default=2_000_000, help="tokens to train on")
    parser.add_argument(
        "--cooldown", type=int, default=40_000, help="tokens over which the learning rate falls to zero"
    )
    parser.add_argument("--batch", type=int, default=640, help="tokens per step, at least")
    parser.add_argument("--lr", type=float, default=4e-4, help="learning rate")
    parser.add_argument("--open-by", type=int, default=60_000, help="mdm: tokens after which all prompts are open")
    parser.add_argument("--every", type=int, default=10, help="steps between two lines of the log")
    parser.add_argument("--validate-every", type=int, default=100, help="steps between two validations")
    parser.add_argument("--seed", type=int, default=0)
    fast = str(fast_dtype()).removeprefix("torch.")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=fast, help="dtype of matrix products")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)
    Run(parser.parse_args()).train()


if __name__ == "__main__":
    main()
