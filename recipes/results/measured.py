"""The numbers of attention that are compared over tasks and over checkpoints: one row per sample and layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from floatlens.data.prompt import Prompt
from floatlens.findings.absorption import absorption
from floatlens.findings.drift import drift
from floatlens.findings.heads import heads
from floatlens.lens import Lens

RULES = ("sigma(3)", "top(1)", "first")


def measure_attention(lens: Lens, prompts: Sequence[Prompt], ids: Sequence[str], **settings: Any) -> pd.DataFrame:
    """Return floating, absorption by each rule, the share of position 0, and the best copy score, by sample and layer.

    Prompts are traced one by one: padding makes batches slower on a CPU, and texts with masks cannot share one.
    """
    parts = []
    for name, prompt in zip(ids, prompts, strict=True):
        trace = lens.trace(prompt, sample_id=str(name), **settings)
        moved, absorbed, copied = drift.measure(trace), absorption.measure(trace, rule=RULES), heads.measure(trace)
        columns: dict[str, Any] = {
            "id": str(name),
            "layer": absorbed["layer"].values,
            "tokens": len(prompt.ids) + len(prompt.tail or ()),
            "floating": moved["floating"].values[0],
            "floating_writing": moved["floating_writing"].values[0],
            "sink": absorbed["sink"].values[0],
            "copying": np.nanmax(np.nan_to_num(copied["hit"].values[0], nan=-1.0), axis=-1),
        }
        for place, rule in enumerate(RULES):
            columns[f"absorption {rule}"] = absorbed["absorption"].values[0, place]
        parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True)
    table["copying"] = table["copying"].where(table["copying"] >= 0)
    return table
