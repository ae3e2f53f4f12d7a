"""How much do anchors seem to float in a network that has learned nothing, or whose tokens never change their strength?

    python -m recipes.results.nulls tiny-mdm --out OUT
    python -m recipes.results.nulls open-masked-0 --adapter RUNS/open-masked-0/final --family a2d-shifted --data DATA \\
        --out OUT

Floating over all rows (mean distance of the attention on anchors between two steps), by layer, three times:

measured   the model itself
reveal     each token has one strength, that of the last step, from the step on at which it is revealed; masks share one
redrawn    the same network with every matrix drawn anew, normal, with the matrix's own mean and deviation

Small models write answers to 20 questions; adapters of SmolLM2 read texts of the plan, 8 tokens per step. Writes
OUT/nulls-NAME.parquet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

import floatlens as fl
from floatlens.anchors import find_anchors
from floatlens.findings import definitions
from floatlens.findings.window import LENGTH, PROMPT, ROWS, attend
from recipes.results.facts import mass, received
from recipes.results.switch import add_options, load, read_novels, spaced_texts

QUESTIONS, TEXTS = 20, 5  # of a small model; per test novel


def reveal_null(a_ST: np.ndarray, masked_ST: np.ndarray, strength_T: np.ndarray | None = None) -> np.ndarray:
    """The attention of tokens that have their strength of the last step from the step on at which they are revealed.

    >>> a, masked = np.array([[0.6, 0.2, 0.2], [0.5, 0.4, 0.1]]), np.array([[0, 1, 1], [0, 0, 1]], bool)
    >>> reveal_null(a, masked).round(2)
    array([[0.6 , 0.2 , 0.2 ],
           [0.47, 0.38, 0.16]])
    """
    on_masks = np.nanmean(a_ST[masked_ST]) if masked_ST.any() else 0.0
    kept_ST = np.where(masked_ST, on_masks, a_ST[-1] if strength_T is None else strength_T)
    return np.asarray(kept_ST / kept_ST.sum(axis=1, keepdims=True))


def floating(a_ST: np.ndarray) -> float:
    """Floating of received attention (step, position)."""
    return definitions.floating(definitions.anchor_mass(a_ST, find_anchors(a_ST, "sigma(3)", "bidirectional")))


def redraw(lens: fl.Lens, seed: int = 0) -> None:
    """Draw every matrix of the network anew."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in lens.model.parameters():
            if weight.ndim > 1:
                weight.normal_(float(weight.float().mean()), float(weight.float().std()))


def received_by(lens: fl.Lens, args: argparse.Namespace) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, received attention (step, layer, position) and masks (step, position) of every question or text."""
    if args.data is None:
        for sample in fl.read("world:fresh", limit=QUESTIONS, passages=0):
            trace = lens.trace(sample.question, max_new_tokens=32)
            a_SLT = trace.data["received"].mean("head").values
            yield sample.id, a_SLT, trace.data["committed_at"].values >= np.arange(len(a_SLT))[:, None]
        return
    novels = read_novels(args.data)
    for book in (6, 7):
        for k, ids in enumerate(spaced_texts(lens.tokenizer, novels[book], TEXTS)):
            a_SLT = np.stack([matrix_LQT.mean(axis=1) for matrix_LQT in attend(lens, ids[:LENGTH])[1]])
            written = PROMPT + ROWS * (np.arange(len(a_SLT)) + 1)
            yield f"{book}-{k}", a_SLT, np.arange(LENGTH) >= written[:, None]


def published() -> pd.DataFrame:
    """The same of LLaDA-8B's published maps, on the anchors that its authors hatched; its weights cannot be redrawn here."""
    masked_ST = fl.paper.reveal_order()["masked"].values
    rows = []
    for layer in (0, 31):
        a_ST = received(layer)
        seen_ST = ~masked_ST & np.isfinite(a_ST)
        mean_T = np.where(seen_ST, a_ST, 0).sum(axis=0) / np.maximum(
            seen_ST.sum(axis=0), 1
        )  # instead of the last step's
        found = {
            "measured": definitions.floating(mass(layer)),
            "reveal": floating(reveal_null(a_ST, masked_ST)),
            "reveal, mean strength": floating(reveal_null(a_ST, masked_ST, mean_T)),
        }
        for what, value in found.items():
            rows.append({"model": f"LLaDA-8B, layer {layer}", "what": what, "layer": layer, "floating": value})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lens = load(args.name, args.adapter, args.family) if args.data else fl.load(args.name)
    rows = []
    for drawn in (False, True):
        if drawn:
            redraw(lens)
        for text, a_SLT, masked_ST in received_by(lens, args):
            for layer in range(a_SLT.shape[1]):
                a_ST = a_SLT[:, layer]
                found = {"redrawn": a_ST} if drawn else {"measured": a_ST, "reveal": reveal_null(a_ST, masked_ST)}
                rows += [
                    {"model": args.name, "what": what, "text": text, "layer": layer, "floating": floating(a)}
                    for what, a in found.items()
                ]
        print(args.name, "redrawn" if drawn else "measured", flush=True)
    pd.DataFrame(rows).to_parquet(args.out / f"nulls-{args.name}.parquet", index=False, compression="zstd")


if __name__ == "__main__":
    main()
