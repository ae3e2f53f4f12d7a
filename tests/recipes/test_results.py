"""The page of results says what the runs say, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

import floatlens as fl
from floatlens.evaluation.deployment import STAGES
from recipes.results import page, texts
from recipes.results.parts import PARTS, Place
from recipes.results.sizes import SIZES


def claim(models: list[str], verdict: str, value: float) -> dict[str, object]:
    return {
        "id": "drift.floating", "finding": "drift", "claim": "Anchors float", "source": "x", "value": value,
        "interval": [value - 0.1, value + 0.1], "n": 200, "verdict": verdict, "models": models, "p": 0.01, "p_holm": 0.03,
    }  # fmt: skip


def finished(runs: Path, name: str, files: dict[str, object]) -> None:
    folder = runs / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))


def test_the_page_has_the_numbers_of_finished_runs_and_names_the_others(tmp_path: Path) -> None:
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    claims = [claim(["tiny-mdm"], "supported", 0.25), claim(["tiny-ssm"], "not supported", -0.125)]
    finished(
        runs, "small-attention", {"claims.json": {"claims": claims}, "manifest.json": {"asked": {}, "machine": "m"}}
    )
    (runs / "small-attention" / "report.html").write_text("<html></html>")
    number = {"value": -0.375, "interval": [-0.5, -0.25], "n": 6}
    effect = {"model": "tiny-mdm", "data": "d", "stress": "noise", "intervention": "move-anchors(by=8)"}
    effect |= {"change": {"accuracy": number, "loss": number}, "beyond": {"accuracy": number, "loss": number}}
    finished(runs, "small-robustness", {"results.json": {"effects": [effect]}})
    stages = [
        {"model": "tiny-mdm", "data": "d", "stage": stage, "accuracy_words": 0.875, "outdated": None, "misled": None,
         "recall": None, "n": 4}
        for stage in STAGES
    ]  # fmt: skip
    looked = [
        {"model": "tiny-mdm", "data": "d", "stage": "misled", "role": "misleading", "share": 0.2, "per_token": 1.5}
    ]
    finished(runs, "small-deployment", {"results.json": {"results": stages, "attention": looked}})
    (runs / "film").mkdir()
    columns = {"absorption first": 80.0, "absorption top(1)": 81.0, "sink": 79.0, "floating": 0.25, "copying": 0.5}
    for trained in (-1, 0, 31250):
        rows = [{"trained": trained, "kind": "mdm", "layer": layer, "id": "a", **columns} for layer in range(3)]
        pd.DataFrame(rows).to_parquet(runs / "film" / f"{trained}.parquet")
    times = {name: {"seconds": 60.0, "finished": True, "words": ["study", "tiny-mdm"]} for name in
             ("small-attention", "small-robustness", "small-deployment", "film")}  # fmt: skip
    place = Place(runs)
    jobs = {name: part.jobs(SIZES["small"], place) for name, part in PARTS.items()}
    missing = {name: part.missing(place) for name, part in PARTS.items()}
    page.write(docs, place, missing, jobs, times)
    text = (docs / "results.md").read_text()
    assert "| Anchors float | tiny-mdm | 0.25 [0.15, 0.35] | 200 | 0.03 | supported |" in text
    assert (
        "2 verdicts: 1 supported, 1 not supported" in text and "Anchors float (tiny-ssm): not supported, -0.125" in text
    )
    assert "move-anchors(by=8)" in text and "-0.375" in text and "0.875" in text and "| 31,250 | 81 | 80 |" in text
    waiting = next(line for line in text.splitlines() if "not finished:" in line)
    assert "`small-answers`" in waiting and "`small-attention`" not in waiting
    assert "name the folder of the real questions with --data" in text and "Not made yet." in text
    for name in ("interventions", "deployment", "deployment-attention", "film"):
        assert (docs / "results" / f"{name}.png").stat().st_size > 1000 and f"results/{name}.png" in text
    assert json.loads((docs / "results" / "manifests" / "small-attention.json").read_text()) == {"asked": {}}
    assert len(pd.read_parquet(docs / "results" / "claims.parquet")) == 2
    assert (docs / "results" / "report.html").exists() and "](results/report.html)" in text


def test_the_prompts_of_all_tasks_are_equally_long() -> None:
    lens = fl.load("tiny-mdm")
    made = {task: texts.prompts_of(lens, task, 2) for task in texts.TASKS}
    lengths = {task: [len(p.ids) + len(p.tail or ()) for p in prompts] for task, prompts in made.items()}
    for task, several in lengths.items():
        for length, wanted in zip(several, lengths["question"], strict=True):
            assert abs(length - wanted) <= (0 if task == "continuation" else 0.15 * wanted), task
