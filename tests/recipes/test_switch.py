"""The effects of the plan are those that a planted table has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recipes.results.switch import WORDS, effects, judge


def table(folder: Path, name: str, first: float, floating: dict[str, float], back: float, other: float) -> None:
    rows = []
    for n in range(40):
        for condition in ("as is", "out"):
            rows.append({"condition": condition, "first_share": first, "floating": floating[condition]})
        rows += [{"condition": f"back at {w}", "follows": back} for w in WORDS]
        rows += [{"condition": f"other 5 at {w}", "follows": other} for w in WORDS]
        for row in rows[-2 - 2 * len(WORDS) :]:
            row["text"] = str(n)
    pd.DataFrame(rows).to_parquet(folder / f"{name}-0.parquet")


def test_effects_are_those_of_a_planted_table(tmp_path: Path) -> None:
    table(tmp_path, "open-masked", 0.01, {"as is": 0.1, "out": 0.6}, back=1.0, other=0.25)
    table(tmp_path, "causal-masked", 0.3, {"as is": 0.0, "out": 0.0}, back=0.0, other=0.0)
    table(tmp_path, "causal-next", 0.5, {"as is": 0.05, "out": 0.15}, back=0.0, other=0.0)
    found = {name: values.mean() for name, (values, _) in effects(tmp_path, 0).items()}
    assert found == pytest.approx({"keeps": 0.29, "type": 0.75, "absent": 0.4})


def test_an_effect_holds_only_above_its_smallest_size() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.3, 0.05, 40)
    assert [judge(values, smallest, 0.95)[2] for smallest in (0.1, 0.3, 0.5)] == ["holds", "inconclusive", "fails"]
    assert judge(values[:19], 0.1, 0.95)[2].startswith("not testable here")
