"""Attention of the writing rows by role of the passages (such as correct or wrong), for a deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from floatlens.evaluation.deployment import ROLES, Lives
from floatlens.findings.received import writing_profile
from floatlens.trace.trace import Trace


def attention_by_role(traces: Iterable[Trace], streams: Mapping[str, Lives]) -> pd.DataFrame:
    """Return one row per trace and role of passages: the attention of the writing rows to it, mean over steps and layers.

    `share` is the sum over the role's passages; `per_token` is their mean per token, relative to all passages of the
    prompt (1: as much as the average passage). A role that is not among the retrieved passages has no row.
    """
    samples = {
        f"{data}, {stage}, {sample.id}": (data, stage, sample)
        for data, stages in streams.items()
        for stage, several in stages.items()
        for sample in several
    }
    rows = []
    for trace in traces:
        data, stage, sample = samples[str(trace.data.attrs["sample_id"])]
        profile_SLT = np.nan_to_num(writing_profile(trace))
        if not len(profile_SLT):
            continue
        mean_T = profile_SLT.mean(axis=(0, 1))
        mass, tokens = dict.fromkeys(ROLES, 0.0), dict.fromkeys(ROLES, 0)
        for number, role in enumerate(sample.meta["roles"], start=1):
            for region in trace.regions:
                if region.name == f"doc{number}":
                    mass[role] += float(mean_T[region.start : region.end].sum())
                    tokens[role] += region.end - region.start
        level = sum(mass.values()) / max(1, sum(tokens.values()))
        about = {"model": str(trace.data.attrs["model"]), "data": data, "stage": stage, "id": sample.id}
        rows += [
            {**about, "role": role, "share": mass[role], "per_token": mass[role] / tokens[role] / level}
            for role in ROLES
            if tokens[role]
        ]
    return pd.DataFrame(rows, columns=["model", "data", "stage", "id", "role", "share", "per_token"])
