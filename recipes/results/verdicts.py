"""The verdicts of all runs: as rows, as tables in Markdown, and beside the published numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from floatlens.findings.knowledge import knowledge
from floatlens.findings.style import short
from recipes.results.facts import facts
from recipes.results.keep import matching, scores_of

CLAIM = ("id", "finding", "claim", "source", "value", "n", "verdict")
COLUMNS = ["run", "models", *CLAIM, "low", "high"]
# Runs of single models on the same questions, whose answers are compared here.
SAME_QUESTIONS = ("real-answers-nq", "real-answers-atlas")
PAPER = "arXiv 2601.07894"
EARLIER = {"supported": "holds", "not supported": "fails", "too few samples": "not testable here"}  # words of kept runs


def claims_of(done: Mapping[str, Path]) -> pd.DataFrame:
    """Return the verdicts of all runs, one row each; those without a sample are left out."""
    found = {name: verdicts_in(run) for name, run in done.items()}
    for name in SAME_QUESTIONS:
        runs = matching(done, name)
        scores = scores_of(runs)
        if len(scores):
            found = {key: claims for key, claims in found.items() if key not in runs}
            found[name] = [verdict.to_dict() for verdict in knowledge.claims(scores)]
    rows = []
    for name, claims in found.items():
        for claim in claims:
            if claim["n"]:
                low, high = claim["interval"]
                about = {key: claim.get(key) for key in CLAIM}
                rows.append(
                    {"run": name, "models": ", ".join(map(short, claim["models"])), **about, "low": low, "high": high}
                )
    return pd.DataFrame(rows, columns=COLUMNS)


def at_a_glance(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per claim and model: of a pair the MDM; beside several ARMs or data sets, one of them.

    That ARM is the one that was trained on the same data, if there is one, and that data set the first.
    """
    first = table["models"].str.partition(", ")
    shown = table.assign(model=first[0], trained=first[2].str.endswith("-arm"))
    shown = shown.sort_values("trained", ascending=False, kind="stable").drop_duplicates(["id", "model"])
    return shown.drop(columns="trained").sort_index()


def published() -> dict[str, str]:
    """Return what the paper's own figures give for a claim's statistic, by the id of the claim; layers are LLaDA's.

    >>> published()["drift.layers"], published()["knowledge.twice"]
    ('LLaDA 0.37', 'LLaDA 0.11, Dream -0.061')
    """
    values = {fact.statistic: fact.values for fact in facts()}
    pairs = (("LLaDA", "Llama"), ("Dream", "Qwen"))
    absorbed, gain = values["mean over layers (%)"], values["gain from passages (points)"]
    ahead, far = values["score with passages (%)"], values["distance of anchor mass, layers 0 and 31"]
    angle, depth = (
        values["share of the angle in the advantage (%)"],
        values["score-weighted depth (0 first, 1 last layer)"],
    )
    numbers = {
        "drift.renewal": values["renewal"],
        "drift.shift": values["shift beyond the null"],
        "drift.layers": {"LLaDA": far["between"] - far["within"]},
        "absorption.more": {mdm: absorbed[arm] - absorbed[mdm] for mdm, arm in pairs},
        "geometry.angle": {layer: share / 100 - 0.5 for layer, share in angle.items()},
        "geometry.turn": {"LLaDA": _bounded(angle["layer 28"] / 100) - _bounded(angle["layer 11"] / 100)},
        "heads.deep": {mdm: depth[mdm] - 0.5 for mdm, _ in pairs},
        "knowledge.gain": {mdm: (gain[mdm] - gain[arm]) / 100 for mdm, arm in pairs},
        "knowledge.twice": {mdm: (gain[mdm] - 2 * gain[arm]) / 100 for mdm, arm in pairs},
        "knowledge.ahead": {mdm: (ahead[mdm] - ahead[arm]) / 100 for mdm, arm in pairs},
    }
    return {id_: ", ".join(f"{name} {value:.2g}" for name, value in found.items()) for id_, found in numbers.items()}


def _bounded(share: float) -> float:
    """Share of the angle in both parts' absolute values, from its share of their sum."""
    return abs(share) / (abs(share) + abs(1 - share))


def verdict_rows(table: pd.DataFrame) -> str:
    """Return verdicts as a table in Markdown."""
    lines = ["| claim | models | value [95 % interval] | n | verdict |", "|---|---|---|---|---|"]
    for row in table.to_dict("records"):
        value = f"{number(row['value'])} [{number(row['low'])}, {number(row['high'])}]"
        lines.append(f"| {row['claim']} | {row['models']} | {value} | {row['n']} | {row['verdict']} |")
    return "\n".join(lines)


def verdicts_in(run: Path) -> list[dict[str, Any]]:
    """Return the verdicts of a kept run in today's words."""
    claims = read(run, "claims.json").get("claims", [])
    return [{**claim, "verdict": EARLIER.get(claim["verdict"], claim["verdict"])} for claim in claims]


def read(run: Path, name: str) -> dict[str, Any]:
    """Return a JSON file of a kept run, empty if the run has none."""
    path = run / name
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def number(value: Any) -> str:
    """
    >>> number(0.12345), number(None), number(3)
    ('0.123', '–', '3')
    """
    return "–" if value is None or value != value else str(value) if isinstance(value, int) else f"{value:.3g}"
