"""Plain answers in sentences, each written from the numbers of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from floatlens.evaluation.stress.collection import STAGES
from floatlens.findings.spelling import listed
from floatlens.stats import interval_of_difference, pair_by_id, percentile_mean
from recipes.results.models import PAIRS


def verdicts_in_words(shown: pd.DataFrame, paper: str) -> str:
    """Say for each model how many claims of the paper and of other papers hold, one row per claim and model given."""
    lines = []
    for model, part in shown.groupby("model", sort=False):
        said = []
        ours = part["source"].str.startswith(paper)
        for name, rows in (("of the paper's claims", part[ours]), ("of claims from other papers", part[~ours])):
            counts = rows["verdict"].value_counts()
            if len(rows):
                said.append(f"{name}, {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")
        lines.append(f"- {model}: {'; '.join(said)}.")
    return "How many claims hold for each model:\n\n" + "\n".join(lines)


# The claims that the summary names: what is said of the models for which a claim holds, and for which it does not.
SUMMARY = {
    "absorption.sink": ("The first token is a sink in {}", "it is none in {}"),
    "drift.renewal": (
        "The anchors of {} lie elsewhere at the end than at the beginning",
        "those of {} hardly change",
    ),
    "drift.moves": (
        "Row by row and on equally long texts, anchors move more in {} than in the ARM",
        "row by row and on equally long texts, anchors do not move more in {} than in the ARM",
    ),
    "drift.layers": ("Anchors differ between the layers of {}", "they hardly do in {}"),
    "tokens.structure": (
        "The shallow anchors of {} are more structural than the deep ones",
        "the shallow anchors of {} are not more structural than the deep ones",
    ),
    "heads.deep": ("Retrieval heads sit deep in {}", "they do not in {}"),
    "flow.gold": ("The answers of {} draw on the right passage", "those of {} do not"),
    "massive.anchors": ("Massive activations sit at the anchors of {}", "they do not in {}"),
    "knowledge.gain": (
        "Passages add more to {} than to the ARM",
        "they do not add more to {} than to the ARM",
    ),
    "causes.pinning": ("Pinning its anchors over the steps harms {}", "pinning anchors over the steps hardly harms {}"),
}


def summary_in_words(shown: pd.DataFrame) -> str:
    """Say for the main claims for which models each holds, and for which it does not, with values."""
    lines = []
    for id_, (holds, fails) in SUMMARY.items():
        part = shown[shown["id"] == id_]
        said = []
        for text, verdict in ((holds, "holds"), (fails, "fails")):
            rows = part[part["verdict"] == verdict]
            if len(rows):
                names = [f"{m} ({v:.2g})" for m, v in zip(rows["model"], rows["value"], strict=True)]
                said.append(text.format(listed(names)))
        if said:
            line = "; ".join(said)
            lines.append(f"- {line[0].upper()}{line[1:]}.")
    return "\n".join(lines)


def claims_in_words(table: pd.DataFrame) -> str:
    """Say for each claim on which models it holds, fails or is undecided."""
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        said = []
        for verdict, rows in part.groupby("verdict", sort=False):
            models = [
                f"{m} ({v:.2g})" for m, v in zip(rows["models"].str.replace(", ", " and "), rows["value"], strict=True)
            ]
            said.append(f"{verdict} for {', '.join(models)}")
        lines.append(f"- {claim}: {'; '.join(said)}.")
    return "\n".join(lines)


# What a claim says of a model that it holds for, and of one that it does not hold for.
FLOATING = {
    "drift.renewal": ("its anchors lie elsewhere at the end than at the beginning", "its anchors hardly change"),
    "drift.layers": ("they differ between layers", "they hardly differ between layers"),
    "drift.moves": ("they move more than those of the ARM", "they do not move more than those of the ARM"),
}


def floating_in_words(claims: Sequence[Mapping[str, Any]]) -> str:
    """Say whether the anchors of `tiny-ssm` move, from the verdicts on the claims of drift; empty without them."""
    said = []
    for claim in sorted(claims, key=lambda claim: list(FLOATING).index(claim["id"]) if claim["id"] in FLOATING else 9):
        if claim["id"] in FLOATING and claim["verdict"] in ("holds", "fails"):
            low, high = claim["interval"]
            holds, fails = FLOATING[claim["id"]]
            text = holds if claim["verdict"] == "holds" else fails
            said.append(f"{text} ({claim['value']:.2f} [{low:.2f}, {high:.2f}])")
        elif claim["id"] in FLOATING:
            said.append(f"it is not decided whether {FLOATING[claim['id']][0]}")
    moves = any(claim["id"] == "drift.renewal" and claim["verdict"] == "holds" for claim in claims)
    return f"**Answer**: {'yes' if moves else 'not by these claims'}. In `tiny-ssm` {'; '.join(said)}." if said else ""


def stress_in_words(scores: pd.DataFrame) -> str:
    """Say for each stress test how accurate each model is at each level."""
    lines = []
    for (name, data), part in scores.groupby(["stress", "data"], sort=False):
        levels = list(dict.fromkeys(part["level"]))
        said = []
        for model, rows in part.groupby("model", sort=False):
            means = rows.groupby("level")["accuracy"].mean().reindex(levels)
            said.append(f"{model} {' / '.join(percent(mean) for mean in means)}")
        count = part.groupby(["model", "level"])["id"].nunique().max()
        lines.append(f"- {name} on {data} ({', '.join(levels)}; {count} questions): {', '.join(said)}.")
    return "**Answer**: the share of right answers at each level:\n\n" + "\n".join(lines)


def effects_in_words(effects: pd.DataFrame) -> str:
    """Say for each intervention for which models it is worse or better than its control, by the interval of accuracy.

    `effects` has one row per model, intervention and score: the `change` of the score, and what of it is `beyond` that of
    the control, with its interval.
    """
    lines = []
    for name, part in effects[effects["score"] == "accuracy"].groupby("intervention", sort=False):
        said = []
        for text, rows in (
            ("worse than the control for", part[part["beyond_high"] < 0]),
            ("better than the control for", part[part["beyond_low"] > 0]),
            ("no different from the control for", part[(part["beyond_low"] <= 0) & (part["beyond_high"] >= 0)]),
        ):
            if len(rows):
                numbers = zip(rows["model"], rows["beyond"], rows["change"], strict=True)
                said.append(
                    f"{text} {listed([f'{m} ({round(100 * x):+d}, in all {round(100 * c):+d})' for m, x, c in numbers])}"
                )
        lines.append(f"- `{name}`: {'; '.join(said)}.")
    return "\n".join(lines)


def deployment_in_words(table: pd.DataFrame, looked: pd.DataFrame) -> str:
    """Say what changes of the collection do to the answers of each model, and where its attention goes.

    Parameters
    ----------
    table: one row per model, data set and stage with the shares of right, outdated and misled answers.
    looked: one row per model, data set, stage and role of a passage with the attention per token.
    """
    lines = []
    for (model, data), part in table.groupby(["model", "data"], sort=False):
        at = part.set_index("stage")
        mine = looked[(looked["model"] == model) & (looked["data"] == data)].set_index(["stage", "role"])["per_token"]
        right = {stage: percent(at["accuracy_words"].get(stage)) for stage in at.index}
        outdated, misled = percent(at["outdated"].max()), percent(at["misled"].get("misled"))
        said = (
            f"{right['present']} of the questions are answered while the document is there, {right['replaced']} after it "
            f"was replaced by one with a new answer, {right['misled']} beside a misleading document, and "
            f"{right['withdrawn']} after it was withdrawn. The old answer is given to {outdated} of the questions at most, "
            f"the misleading one to {misled}"
        )
        roles = [("misleading", "the misleading document"), ("current", "the current document")]
        seen = [f"{mine['misled', r]:.2f} for {text}" for r, text in roles if ("misled", r) in mine.index]
        if seen:
            said += (
                f"; beside a misleading document, the attention per token (1 for all passages) is {' and '.join(seen)}"
            )
        lines.append(f"- {model} on {data}: {said}.")
    return "**Answer**:\n\n" + "\n".join(lines)


def pairs_in_words(scores: pd.DataFrame) -> str:
    """Say how many more questions an MDM answers at each stage than the ARM of the same data, with intervals.

    `scores` has one row per answer; `condition` is its stage. Empty without such a pair.
    """
    lines = []
    for data, asked in scores.groupby("data", sort=False):
        right = {key: part.set_index("id")["accuracy_words"] for key, part in asked.groupby(["model", "condition"])}
        for mdm, arm in PAIRS:
            said = []
            for stage in STAGES:
                if (mdm, stage) in right and (arm, stage) in right:
                    both = pair_by_id(right[mdm, stage].to_dict(), right[arm, stage].to_dict())
                    value, (low, high) = interval_of_difference(*both, binary=True)
                    said.append(f"{stage} {100 * value:+.0f} [{100 * low:.0f}, {100 * high:.0f}]")
            if said:
                lines.append(f"- {mdm} minus {arm} on {data}: {', '.join(said)}.")
    if not lines:
        return ""
    return (
        "How many more questions in a hundred an MDM answers than the ARM that was trained on the same data, by stage, with "
        "95 % intervals of the paired difference:\n\n" + "\n".join(lines)
    )


def texts_in_words(table: pd.DataFrame) -> str:
    """Say for each task how much the anchors of each model move, with intervals."""
    lines = []
    for task, part in table.groupby("task", sort=False):
        said = []
        for model, rows in part.groupby("model", sort=False):
            found = percentile_mean(rows["floating"].to_numpy(float))
            said.append(f"{model} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")
        lines.append(f"- {task}: {', '.join(said)}.")
    return (
        "**Answer**: how much the anchors move from step to step (`floating`: 0, they stay; 1, they are all new), mean over "
        "layers, with 95 % intervals over texts:\n\n" + "\n".join(lines)
    )


def film_in_words(table: pd.DataFrame) -> str:
    """Say what becomes of the first token's share and of the strongest position over training."""
    lines = []
    for trained, part in table.groupby("trained"):
        first, strongest = part["absorption first"], part["absorption top(1)"]
        at = part.loc[first.idxmax(), "layer"]
        name = "SmolLM2 itself" if trained < 0 else f"after {trained:,} tokens"
        lines.append(
            f"- {name}: the first token receives {np.mean(first):.1f} % of the attention on average over layers, at most "
            f"{first.max():.1f} % (layer {at}); the strongest position {np.mean(strongest):.1f} %, at most "
            f"{strongest.max():.1f} %."
        )
    return "**Answer**:\n\n" + "\n".join(lines)


def percent(share: float | None) -> str:
    """Return a share as a whole percentage.

    >>> percent(0.614), percent(None)
    ('61 %', '–')
    """
    return "–" if share is None or not np.isfinite(share) else f"{100 * share:.0f} %"
