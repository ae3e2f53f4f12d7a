"""Score an adapter in the making: exact match and accuracy, one token per step, and where its attention sinks.

    python score.py mdm OUT/mdm/latest --data DATA --limit 100
    python score.py canvas OUT/canvas/final --data DATA --source atlas
    python score.py arm OUT/arm/final --data DATA --closed-book
    python score.py plain --data DATA                  the unchanged model

Prompts are those of `Lens.prompt`, metrics those of `floatlens eval`. Diffusion models write as the samplers of the package
do: the position of lowest entropy first, those that end the answer last. `--sink` prints instead, for each layer, the share
of attention that position 0 receives from all rows when everything is masked, and the position that receives most.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from network import GROUPS, Network, attention, fast_dtype, positions_of
from rows import SCORED, Question, question_of, read_nq
from train import canvas_rows, prefill

import floatlens as fl
from floatlens.decode.most_certain import put_last
from floatlens.evaluation.metrics import score

BATCH = 4


def read_scored(folder: Path) -> list[Question]:
    """The questions of Natural Questions that are never trained on."""
    with gzip.open(folder / SCORED, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    passages = [f"{row['ctxs'][0]['title']}: {row['ctxs'][0]['text']}" for row in rows]
    return [Question(r["question"], r["answers"], [p], [], "nq") for r, p in zip(rows, passages, strict=True)]


def commit(ids: list[int], hidden: list[int], logits_XV: torch.Tensor, count: int, end: int) -> list[int]:
    """Write the `count` most certain places into `ids`; return the places that stay hidden."""
    probs_XV = logits_XV.softmax(-1)
    certain_X = put_last((probs_XV * (probs_XV + 1e-10).log()).sum(-1), probs_XV.argmax(-1), (end,))
    chosen = certain_X.sort(descending=True, stable=True).indices[:count].tolist()
    for x in chosen:
        ids[hidden[x]] = int(probs_XV[x].argmax())
    return [place for x, place in enumerate(hidden) if x not in chosen]


@torch.no_grad()
def denoise(
    network: Network, prompts: list[list[int]], places: int, steps: int, end: int, *, canvas: bool
) -> list[list[int]]:
    """Answers of a batch of prompts, `places` tokens each."""
    caches = prefill(network, [prompt[:-1] for prompt in prompts]) if canvas else []
    rows = [[*(prompt[-1:] if canvas else prompt), *[network.mask_id] * places] for prompt in prompts]
    lengths = [len(row) for row in rows]
    hidden = [list(range(n - places, n)) for n in lengths]

    def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [attention(*p) for p in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)]
        )

    for step in range(steps):
        if canvas:
            x_NW = canvas_rows(network, caches, rows, hidden)
        else:
            ids_N = torch.tensor([i for row in rows for i in row])
            x_NW = network.layers(network.embed(ids_N, ids_N == network.mask_id), positions_of(lengths), attend)
        for r, x_TW in enumerate(x_NW.split(lengths)):
            logits_XV = network.logits(x_TW[[i - 1 for i in hidden[r]]])
            hidden[r] = commit(rows[r], hidden[r], logits_XV, -(-len(hidden[r]) // (steps - step)), end)
    return [row[-places:] for row in rows]


@torch.no_grad()
def merge_into(model: Any, network: Network) -> None:
    """Put the adapted weights into the model itself, so that the lens writes with them."""
    for layer, merged in zip(model.model.layers, network.merged, strict=True):
        for group, names in GROUPS.items():
            for name, weight in zip(names, merged[group].split(network.sizes[group]), strict=True):
                layer.get_submodule(name).weight.copy_(weight)


def answers(args: argparse.Namespace, lens: Any, network: Network, prompts: list[Any]) -> Iterator[str]:
    """Answers in the order of the prompts, batch by batch."""
    ends = set(lens.end_ids)
    for begin in range(0, len(prompts), BATCH):
        part = prompts[begin : begin + BATCH]
        if args.mode in ("plain", "arm"):
            yield from (made.text for made in lens.generate(part, max_new_tokens=args.places))
            continue
        ids = [prompt.ids for prompt in part]
        steps = args.steps or args.places
        for row in denoise(network, ids, args.places, steps, lens.end_ids[0], canvas=args.mode == "canvas"):
            end = next((i for i, token in enumerate(row) if token in ends), len(row))
            yield lens.decode(row[:end])


@torch.no_grad()
def received(args: argparse.Namespace, network: Network, ids: list[int]) -> list[torch.Tensor]:
    """Attention that each position receives by layer: mean over heads and over all rows of the prompt and the masks."""
    T, P = len(ids) + args.places, len(ids)
    causal_TT = torch.ones(T, T, dtype=torch.bool).tril()
    if args.mode in ("plain", "arm"):  # nothing is masked in them: their rows are those of the prompt
        T, causal_TT = P, causal_TT[:P, :P]
    may_see = torch.ones(T, T, dtype=torch.bool) if args.mode == "mdm" else causal_TT
    ids_T = torch.tensor([*ids, *[network.mask_id] * (T - P)])
    sums: list[torch.Tensor] = []

    def record(q_THD: torch.Tensor, k_TKD: torch.Tensor, may: torch.Tensor) -> torch.Tensor:
        k_THD = k_TKD.repeat_interleave(q_THD.shape[1] // k_TKD.shape[1], 1)
        scores_HQT = torch.einsum("qhd,thd->hqt", q_THD, k_THD) / q_THD.shape[2] ** 0.5
        return scores_HQT.masked_fill(~may, -torch.inf).softmax(-1).mean(0).sum(0)

    if args.mode == "canvas":
        caches = prefill(network, [ids[:-1]])
        prompt_sums: list[torch.Tensor] = []

        def attend_prompt(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            prompt_sums.append(record(q, k, causal_TT[: P - 1, : P - 1]))
            return attention(q, k, v, causal_TT[: P - 1, : P - 1])

        network.layers(network.embed(ids_T[: P - 1]), torch.arange(P - 1), attend_prompt, adapted=False)

        def attend_canvas(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = (torch.cat(pair) for pair in zip(caches[0][i], (k, v), strict=True))
            sums.append(record(q, keys, torch.ones(len(q), T, dtype=torch.bool)))
            sums[-1][: P - 1] += prompt_sums[i]
            return attention(q, keys, values)

        x_NW = network.embed(ids_T[P - 1 :], ids_T[P - 1 :] == network.mask_id)
        network.layers(x_NW, torch.arange(P - 1, T), attend_canvas)
    else:

        def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            sums.append(record(q, k, may_see))
            return attention(q, k, v, may_see)

        network.layers(network.embed(ids_T, ids_T == network.mask_id), torch.arange(T), attend)
    return [total_T / T for total_T in sums]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("plain", "arm", "canvas", "mdm"))
    parser.add_argument("adapter", type=Path, nargs="?", help="folder of the adapter; none for plain")
    parser.add_argument("--data", type=Path, required=True, help="folder of the Natural Questions files")
    parser.add_argument("--source", choices=("nq", "nq-held-out", "atlas"), default="nq")
    parser.add_argument("--split", default="validation", help="split of atlas")
    parser.add_argument("--skip", type=int, default=0, help="questions to leave out at the beginning")
    parser.add_argument("--limit", type=int, default=200, help="maximum number of questions")
    parser.add_argument("--places", type=int, default=32, help="tokens to write")
    parser.add_argument("--steps", type=int, help="steps of a diffusion model; by default one per token")
    parser.add_argument("--closed-book", action="store_true", help="show no passages")
    parser.add_argument("--passages", type=int, default=5, help="atlas: passages per question, the gold one among them")
    parser.add_argument("--sink", action="store_true", help="print received attention by layer instead of scores")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    lens = fl.load("smollm2")
    mask = lens.tokenizer.convert_tokens_to_ids("<empty_output>")
    network = Network(lens.model, mask, dtype=torch.float32 if args.sink else fast_dtype(), compile=False)
    if args.adapter:
        network.load(args.adapter)
        if args.mode == "arm":
            merge_into(lens.model, network)
    if args.source == "atlas":
        samples = fl.read("atlas", split=args.split, passages=args.passages)
        questions = [question_of(sample, "atlas") for sample in samples]
    else:
        questions = read_scored(args.data) if args.source == "nq" else read_nq(args.data)[1]
    questions = questions[args.skip : args.skip + args.limit]
    shown = [[] if args.closed_book else sorted(q.gold + q.others) for q in questions]
    prompts = [lens.prompt(q.question, passages) for q, passages in zip(questions, shown, strict=True)]

    if args.sink:
        first, best = [], []
        for prompt in prompts:
            layers = received(args, network, prompt.ids)
            first.append([float(a[0]) for a in layers])
            best.append([(float(a.max()), int(a.argmax())) for a in layers])
        for i in range(len(first[0])):
            tops = [
                prompt.ids[b[i][1]] if b[i][1] < len(prompt) else network.mask_id
                for prompt, b in zip(prompts, best, strict=True)
            ]
            common = lens.tokenizer.convert_ids_to_tokens(max(set(tops), key=tops.count))
            at_first, at_best = (
                sum(values) / len(values) for values in ([f[i] for f in first], [b[i][0] for b in best])
            )
            print(f"layer {i}: position 0 {at_first:.3f}, strongest {at_best:.3f} {common!r}")
        return

    began, scores = time.time(), []
    for question, answer in zip(questions, answers(args, lens, network, prompts), strict=True):
        scores.append(score(answer, question.answers))
        marks = f"{scores[-1]['em']:.0f} {scores[-1]['accuracy']:.0f}"
        print(f"{marks}  {question.question} | {answer!r} | {question.answers[:3]}", flush=True)
    em, accuracy, f1 = (sum(each[name] for each in scores) / len(scores) for name in ("em", "accuracy", "f1"))
    print(
        f"{args.mode} {args.source} {'closed book' if args.closed_book else 'with passages'}: n {len(scores)}, "
        f"em {em:.3f}, accuracy {accuracy:.3f}, f1 {f1:.3f}, {time.time() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
