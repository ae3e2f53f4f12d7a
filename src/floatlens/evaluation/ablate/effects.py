"""The effects of interventions: each compared with no intervention and with its matched control, per question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from floatlens import stats
from floatlens.evaluation.ablate.condition import CHANGED, CONTROL, MEASURES, PLAIN
from floatlens.evaluation.summary import difference

KEY = ["model", "data"]


def wide(part: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return one row per question, with a column for no intervention and for each (name, intervention), (name, control).

    A control is the mean over its seeds, so that every question counts once.
    """
    plain = part[part["role"] == PLAIN].set_index("id")[measure].rename(("", PLAIN))
    rest = part[part["role"] != PLAIN].pivot_table(index="id", columns=["of", "role"], values=measure, aggfunc="mean")
    return pd.concat([plain, rest.reindex(plain.index)], axis=1)


def results(answers: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one entry per model, data set and intervention: means with intervals, and paired differences with p-values.

    `change` is the intervention minus no intervention, `beyond` the intervention minus its matched control.
    """
    found = []
    for (model, data), part in answers.groupby(KEY, sort=False):
        tables = {measure: wide(part, measure) for measure in MEASURES}
        about = part.drop_duplicates("condition").set_index("condition")
        names = [name for name, role in zip(about.index, about["role"], strict=True) if role != CONTROL]
        for name in names:
            one = about.loc[name]
            column = ("", PLAIN) if one["role"] == PLAIN else (name, CHANGED)
            entry: dict[str, Any] = {
                "model": model,
                "data": data,
                "condition": name,
                "intervention": one["intervention"],
                "group": one["group"],
                "dose": stats.finite_or_none(float(one["dose"])) if pd.notna(one["dose"]) else None,
                "n": int(part[(part["condition"] == name)]["error"].isna().sum()),
                "errors": int(part[(part["condition"] == name)]["error"].notna().sum()),
                "controls": sorted({int(s) for s in part[part["of"] == name]["control_seed"].dropna()}),
                "intervals": {},
                "change": {},
                "beyond": {},
            }
            for measure, table in tables.items():
                if column not in table:
                    continue
                values = table[column]
                mean = stats.percentile_mean(values.to_numpy(float))
                entry[measure] = stats.finite_or_none(mean.value)
                entry["intervals"][measure] = [stats.finite_or_none(mean.low), stats.finite_or_none(mean.high)]
                if column != ("", PLAIN):
                    entry["change"][measure] = difference(values, table[("", PLAIN)])
                    if (name, CONTROL) in table:
                        entry["beyond"][measure] = difference(values, table[(name, CONTROL)])
            nll = entry.get("gold_nll")
            entry["gold_perplexity"] = float(np.exp(nll)) if nll is not None else None
            found.append(entry)
    return found
