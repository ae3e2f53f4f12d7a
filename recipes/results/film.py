"""Adaptation as a film: the sink, the anchors and the retrieval heads while SmolLM2 is turned into a diffusion model.

The checkpoints of the training are adapters in folders `at-TOKENS`. SmolLM2 itself, which is autoregressive, comes first.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

import floatlens as fl
from floatlens.data.prompt import Prompt
from recipes.results.measured import measure_attention

BASE = "smollm2"
NEW, PASSAGES = 16, 3
NAME = re.compile(r"at-(\d+)")


def run(adapters: Path, out: Path, limit: int) -> None:
    """Measure every checkpoint on the same questions; a table that exists is kept."""
    found = {int(match[1]): path for path in adapters.iterdir() if (match := NAME.fullmatch(path.name))}
    if not found:
        raise fl.FloatLensError(f"{adapters} has no folders at-TOKENS; name the folder that the training wrote")
    out.mkdir(parents=True, exist_ok=True)
    samples = list(fl.read("atlas", limit=limit, passages=PASSAGES))
    for tokens, path in [(-1, None), *sorted(found.items())]:
        target = out / f"{tokens}.parquet"
        if target.exists():
            continue
        adapter, family = (None, None) if path is None else (str(path), "a2d-shifted")
        lens = fl.load(BASE, adapter=adapter, family=family, dtype="bfloat16")
        prompts: list[Prompt] = [lens.prompt(s.question, s.passages, answers=s.answers) for s in samples]
        table = measure_attention(lens, prompts, [s.id for s in samples], max_new_tokens=NEW)
        table.assign(trained=tokens, kind=lens.family.kind).to_parquet(target, index=False)


def collect(run: Path) -> pd.DataFrame:
    """Return one row per checkpoint and layer: means over samples. `trained` is −1 for SmolLM2 itself."""
    table = pd.concat([pd.read_parquet(path) for path in sorted(run.glob("*.parquet"))], ignore_index=True)
    grouped = table.groupby(["trained", "kind", "layer"])
    return grouped.mean(numeric_only=True).join(grouped.size().rename("n")).reset_index()
