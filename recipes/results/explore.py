"""What the plan calls exploratory: prefixes, a token revealed late, interventions, maps, a hidden first token.

    python -m recipes.results.explore prefixes open-masked-0 --adapter RUNS/open-masked-0/final --family a2d-shifted \\
        --data DATA --out OUT

prefixes       one of four words and then the candidate, or a semicolon, before the text without the candidate's type
reveal         the candidate or a control stands masked in that text and is revealed at step 3: beside the text that is
               written by then, or far ahead of it
interventions  likelihood of the text under changed attention in the deep layers, and how far attention moved
statistics     movement by four statistics: all rows, the last written row, windows, windows without normalising
maps           attention on the prompt at every step of one text without punctuation, and with one candidate in it
hidden         the base model (`hidden smollm2`) when no query may see its first token

Each writes OUT/WHAT-NAME.parquet; texts that are there already are not measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import floatlens as fl
from floatlens.anchors import find_anchors
from floatlens.data.prompt import Prompt
from floatlens.findings import definitions
from floatlens.findings.sink import Text, measure_text, same_type
from floatlens.findings.window import HIDDEN, LENGTH, PROMPT, ROWS, WRITTEN, attend, moves, profile, read_text
from recipes.results.switch import Rows, add_options, bare_texts, fill_table, load, read_candidate, read_novels

WORDS = ("Well", "Now", "Yes", "So")  # before the mark of a prefix
REVEALED = 3  # the step at which a late token is revealed
BESIDE, AHEAD = PROMPT, PROMPT + 72  # positions of a late token: the first one written, and one that step 8 reaches
DEEP = "layers=15:30"
CHANGES = (
    f"mask-anchors(rule=sigma(3), {DEEP})",
    f"pin-anchors(1, rule=sigma(3), {DEEP})",
    f"move-anchors(by=8, rule=sigma(3), {DEEP})",
    f"add-sink(0, {DEEP})",
    f"add-sink(4, {DEEP})",
)
COARSE = 16  # tokens per step under interventions, to save half of the passes
RANDOM = (1, 4, 16, 32, 48, 64, 80, 96, 112, 128)  # positions that are masked at random, for comparison
MAPPED = "7-1"  # the text of the maps


def encode(lens: fl.Lens, text: str) -> list[int]:
    return list(lens.tokenizer(text, add_special_tokens=False)["input_ids"])


def prefixes(lens: fl.Lens, candidate: int, removed: set[int], ids: Sequence[int]) -> Rows:
    out = [i for i in ids if i not in removed]
    rows = []
    for word in WORDS:
        for name, mark in (("candidate", candidate), ("semicolon", encode(lens, ";")[-1])):
            before = [*encode(lens, word), mark]
            text = Text(f"{word} {name}", [*before, *out][:LENGTH], len(before) - 1)
            rows.append(measure_text(lens, text, windows=True) | {"word": word, "mark": name})
    return rows


def reveal(lens: fl.Lens, candidate: int, removed: set[int], controls: Sequence[int], ids: Sequence[int]) -> Rows:
    out = [i for i in ids if i not in removed]
    rows = []
    for token in (candidate, *controls[:2]):
        for at in (BESIDE, AHEAD):
            text = [*out[:at], token, *out[at:]][: LENGTH + 1]
            others = [i for i in range(len(text) - PROMPT) if i != at - PROMPT]
            order = [others[i : i + ROWS] for i in range(0, WRITTEN, ROWS)] + [others[WRITTEN:]]
            order[REVEALED] = [at - PROMPT, *order[REVEALED]]
            prompt = Prompt.from_ids(text[:PROMPT])
            trace = lens.replay(prompt, text[PROMPT:], order, record=("received",), matrices=("attention_mean",))
            for step, matrix_LQT in enumerate(trace.data["attention_mean"].values):
                received_T = deep(matrix_LQT)[:, PROMPT : len(text) - HIDDEN].mean(axis=(0, 1))
                rows.append(
                    {"token": token, "at": at, "step": step, "share": float(received_T[at])}
                    | {"sink": int(received_T.argmax()), "is_sink": bool(received_T.argmax() == at)}
                )
    return rows


def interventions(lens: fl.Lens, removed: set[int], ids: Sequence[int]) -> Rows:
    rows = []
    for condition, text in (("as is", ids), ("out", [i for i in ids if i not in removed])):
        text = list(text[:LENGTH])
        plain, nats = read_coarsely(lens, text)
        rows.append({"condition": condition, "change": "plain", "nats": nats, "moved": 0.0})
        draw = np.random.default_rng(0)
        chosen = {f"random {n}": draw.choice(PROMPT + WRITTEN, n, replace=False) for n in RANDOM}
        masked = {name: f"mask-positions({sorted(map(int, where))}, {DEEP})" for name, where in chosen.items()}
        for name, spec in [*((change, change) for change in CHANGES), *masked.items()]:
            with lens.intervene(spec):
                changed, nats = read_coarsely(lens, text)
            moved = np.mean([distance(a, b) for a, b in zip(plain, changed, strict=True)])
            rows.append({"condition": condition, "change": name, "nats": nats, "moved": float(moved)})
    return rows


def read_coarsely(lens: fl.Lens, text: list[int]) -> tuple[np.ndarray, float]:
    """Attention at every step of the text, written 16 tokens at a time, and nats per written token."""
    answer = list(range(WRITTEN + HIDDEN))
    order = [answer[i : i + COARSE] for i in range(0, WRITTEN, COARSE)] + [answer[WRITTEN:]]
    prompt = Prompt.from_ids(text[:PROMPT])
    trace = lens.replay(prompt, text[PROMPT:], order, record=("received",), matrices=("attention_mean",))
    confidence, at = trace.data["confidence"].values, trace.data["committed_at"].values
    written = range(PROMPT, PROMPT + WRITTEN)
    return trace.data["attention_mean"].values, float(-np.log([confidence[at[i], i] for i in written]).mean())


def distance(one_LQT: np.ndarray, other_LQT: np.ndarray) -> float:
    """Total variation of the written rows' attention, mean over deep layers; an added sink counts as one position."""
    one_LT, other_LT = (deep(m)[:, PROMPT : PROMPT + WRITTEN].mean(axis=1) for m in (one_LQT, other_LQT))
    lost_L = abs(one_LT.sum(axis=-1) - other_LT.sum(axis=-1))
    return float((abs(one_LT - other_LT).sum(axis=-1) + lost_L).mean() / 2)


def statistics(lens: fl.Lens, removed: set[int], ids: Sequence[int]) -> Rows:
    rows = []
    for condition, text in (("as is", ids), ("out", [i for i in ids if i not in removed])):
        _, matrices, _ = attend(lens, list(text[:LENGTH]))
        causal = lens.family.attention == "causal"
        all_SLT = np.full((len(matrices), len(deep(matrices[0])), LENGTH), np.nan)
        last_SLT = all_SLT.copy()
        for step, matrix_LQT in enumerate(matrices):
            end = PROMPT + (step + 1) * ROWS  # tokens that are there after this step; a causal model has no masks
            there = end if causal else LENGTH
            all_SLT[step, :, :there] = deep(matrix_LQT)[:, :there, :there].mean(axis=1)
            last_SLT[step, :, :there] = deep(matrix_LQT)[:, end - 1, :there]
        starts = range(PROMPT, PROMPT + WRITTEN, ROWS)
        windows = [profile(deep(m)[:, s : s + ROWS], s) for m, s in zip(matrices, starts, strict=True)]
        moved = moves(windows)
        assert moved is not None
        rows.append(
            {
                "condition": condition,
                "all rows": floating(all_SLT, lens.family.attention),
                "last row": floating(last_SLT, "bidirectional"),
                "window": float(np.nanmean(moved[0])),
                "moved": float(moved[1].mean()),
            }
        )
    return rows


def floating(a_SLT: np.ndarray, attention: str) -> float:
    """Floating by `definitions.floating`, mean over the layers that have a value; NaN where a position is not there yet."""
    mass_SLT = definitions.anchor_mass(np.nan_to_num(a_SLT), find_anchors(a_SLT, "sigma(3)", attention))
    return float(np.nanmean([definitions.floating(mass_ST) for mass_ST in np.moveaxis(mass_SLT, 1, 0)]))


def maps(lens: fl.Lens, candidate: int, ids: Sequence[int]) -> Rows:
    rows = []
    texts = bare_texts(lens.tokenizer, list(ids), candidate)[:2]
    for text in texts:
        for step, matrix_LQT in enumerate(attend(lens, text.ids)[1]):
            first = PROMPT + step * ROWS
            shown_T = deep(matrix_LQT)[:, first : first + ROWS, :PROMPT].mean(axis=(0, 1))
            rows.append(
                {"condition": text.condition, "step": step, "attention": shown_T, "inserted": texts[1].inserted}
            )
    return rows


def hidden(lens: fl.Lens, ids: Sequence[int]) -> Rows:
    columns = ("sink", "sink_share", "sink_token")
    found = {"as is": read_text(lens, ids[:LENGTH])}
    with lens.intervene("mask-positions(0)"):
        found["first token hidden"] = read_text(lens, ids[:LENGTH])
    return [{"condition": condition} | {c: numbers[c] for c in columns} for condition, numbers in found.items()]


def deep(matrix_LQT: np.ndarray) -> np.ndarray:
    """The second half of the layers."""
    return matrix_LQT[len(matrix_LQT) // 2 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prefixes", "reveal", "interventions", "statistics", "maps", "hidden"))
    add_options(parser)
    parser.add_argument(
        "--every", type=int, help="read every so many texts; by default as many as the measurement needs"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    novels, lens = read_novels(args.data), load(args.name, args.adapter, args.family)
    found: dict[str, Any] = {}
    if args.what != "hidden":
        found = read_candidate(lens, args.name, novels, args.out, args.like)
    candidate = found.get("candidate", -1)
    removed = same_type(lens.tokenizer, candidate) if found else set()
    rows_of, every = {
        "prefixes": (partial(prefixes, lens, candidate, removed), 2),
        "reveal": (partial(reveal, lens, candidate, removed, found.get("controls", [])), 2),
        "interventions": (partial(interventions, lens, removed), 4),
        "statistics": (partial(statistics, lens, removed), 4),
        "maps": (partial(maps, lens, candidate), 1),
        "hidden": (partial(hidden, lens), 1),
    }[args.what]
    every, only = args.every or every, MAPPED if args.what == "maps" else None
    table = args.out / f"{args.what}-{args.name}.parquet"
    fill_table(
        table, lens, novels, lambda ids: [{"model": args.name} | row for row in rows_of(ids)], args.every or every, only
    )


if __name__ == "__main__":
    main()
