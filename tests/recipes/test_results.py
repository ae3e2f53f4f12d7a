"""The page of results agrees with the runs, and lists what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import floatlens as fl
from floatlens.evaluation.stress.collection import STAGES
from recipes.results import draw, page, texts, verdicts, words
from recipes.results.__main__ import choose, run_job
from recipes.results.keep import failures, keep, kept_runs, scores_of
from recipes.results.parts import PARTS, Job, Place
from recipes.results.sizes import SIZES


def claim(models: list[str], verdict: str, value: float) -> dict[str, object]:
    return {
        "id": "drift.moves", "finding": "drift", "claim": "Anchors float", "source": "x", "value": value,
        "interval": [value - 0.1, value + 0.1], "n": 200, "verdict": verdict, "models": models,
    }  # fmt: skip


def finished(runs: Path, name: str, files: dict[str, object]) -> None:
    folder = runs / name
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))


def test_the_page_has_the_numbers_of_kept_runs_and_names_the_others(tmp_path: Path) -> None:
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    claims = [claim(["tiny-mdm"], "holds", 0.25), claim(["tiny-ssm"], "fails", -0.125)]
    manifest = {"asked": {"data": ["/home/me/nq.jsonl"]}, "machine": "m"}
    finished(runs, "small-attention", {"claims.json": {"claims": claims}, "manifest.json": manifest})
    (runs / "small-attention" / "report.html").write_text("<html></html>")
    number = {"value": -0.375, "interval": [-0.5, -0.25], "n": 6}
    effect = {"model": "tiny-mdm", "data": "d", "stress": "noise", "intervention": "move-anchors(by=8)"}
    effect |= {"change": {"accuracy": number, "loss": number}, "beyond": {"accuracy": number, "loss": number}}
    finished(runs, "small-robustness-tiny-mdm", {"results.json": {"effects": [effect]}})
    stages = [
        {"model": "tiny-mdm", "data": "d", "stage": stage, "accuracy_words": 0.875, "outdated": None, "misled": None,
         "recall": None, "recall_low": None, "recall_high": None, "n": 8}
        for stage in STAGES
    ]  # fmt: skip
    looked = [
        {"model": "tiny-mdm", "data": "d", "stage": "misled", "role": "misleading", "share": 0.2, "per_token": 1.5}
    ]
    finished(runs, "small-deployment-tiny-mdm", {"results.json": {"results": stages, "attention": looked}})
    (runs / "film").mkdir()
    columns = {"absorption first": 80.0, "absorption top(1)": 81.0, "sink": 79.0, "floating": 0.25, "copying": 0.5}
    for trained in (-1, 0, 31250):
        rows = [{"trained": trained, "kind": "mdm", "layer": layer, "id": "a", **columns} for layer in range(3)]
        pd.DataFrame(rows).to_parquet(runs / "film" / f"{trained}.parquet")
    place = Place(runs, docs / "results" / "runs")
    for run in runs.iterdir():
        keep(run, place.kept / run.name, {"seconds": 60.0, "words": ["study", "tiny-mdm", "/home/me/nq.jsonl"]})
    jobs = {name: part.jobs(SIZES["small"], place) for name, part in PARTS.items()}
    missing = {name: part.missing(place) for name, part in PARTS.items()}
    page.write(docs, place, missing, jobs)
    text = (docs / "results.md").read_text()
    assert "| Anchors float | tiny-mdm | 0.25 [0.15, 0.35] | 200 | holds |" in text
    assert "2 verdicts: 1 holds, 1 fails" in text
    assert "| tiny-ssm | fails: -0.125 [-0.225, -0.025], n 200 | holds: 0.25 [0.15, 0.35], n 200 |" in text
    assert "move-anchors(by=8)`: worse than the control for tiny-mdm (-38, in all -38)." in text
    assert (
        "| tiny-mdm | d | present | 0.875 [0.508, 0.999] | – | – | – | 8 |" in text and "| 31,250 | 81 | 80 |" in text
    )
    waiting = next(line for line in text.splitlines() if "not finished:" in line)
    assert "`small-knowledge`" in waiting and "`small-attention`" not in waiting
    assert "`small-robustness-tiny-arm`" in waiting and "`small-robustness-tiny-mdm`" not in waiting
    assert "name the folder of the real questions with --data" in text and "Not made yet." in text
    for name in ("interventions", "deployment", "deployment-attention", "film"):
        assert (docs / "results" / f"{name}.png").stat().st_size > 1000 and f"results/{name}.png" in text
    kept = place.kept / "small-attention"
    assert json.loads((kept / "manifest.json").read_text()) == {"asked": {"data": ["nq.jsonl"]}}
    assert json.loads((kept / "job.json").read_text())["words"] == ["study", "tiny-mdm", "nq.jsonl"]
    assert len(pd.read_parquet(docs / "results" / "claims.parquet")) == 2
    assert (docs / "results" / "report.html").exists() and "](results/report.html)" in text


def test_a_run_that_is_kept_is_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path / "runs", tmp_path / "kept")
    job = Job("some-run", ("no-such-command",), "A run that fails")
    assert not run_job(job, place)
    assert not kept_runs(place.kept)
    keep(tmp_path / "runs" / "some-run", place.kept / "some-run", {"seconds": 1.0, "words": ["another"]})
    assert not run_job(job, place)
    keep(tmp_path / "runs" / "some-run", place.kept / "some-run", {"seconds": 1.0, "words": list(job.words)})
    assert run_job(job, place)
    assert "remove it there to run it again" in capsys.readouterr().out


def test_a_run_of_which_a_part_failed_is_not_kept(tmp_path: Path) -> None:
    finished(tmp_path, "study", {"results.json": {"failed": {"tiny-arm, replays": "no space is left"}}})
    assert failures(tmp_path / "study") == ["tiny-arm, replays: no space is left"]
    finished(tmp_path, "eval", {"results.json": {"results": []}})
    assert not failures(tmp_path / "eval") and not failures(tmp_path / "film")


def test_runs_are_chosen_by_part_by_name_and_by_the_beginning_of_a_name() -> None:
    jobs = {"small": [Job("small-a-x", (), ""), Job("small-a-y", (), ""), Job("small-b", (), "")], "film": []}
    names = lambda *given: [job.name for job in choose(jobs, given)]  # noqa: E731
    assert names() == names("small") == ["small-a-x", "small-a-y", "small-b"]
    assert names("small-a") == ["small-a-x", "small-a-y"]
    assert names("small-a-y", "film") == ["small-a-y"]
    jobs["small"].append(Job("small-b-z", (), ""))
    assert names("small-b") == ["small-b"]


def test_the_prompts_of_all_tasks_are_equally_long() -> None:
    lens = fl.load("tiny-mdm")
    made = {task: texts.prompts_of(lens, task, 2) for task in texts.TASKS}
    lengths = {task: [len(p.ids) + len(p.tail or ()) for p in prompts] for task, prompts in made.items()}
    for task, several in lengths.items():
        for length, wanted in zip(several, lengths["question"], strict=True):
            assert abs(length - wanted) <= (0 if task == "continuation" else 0.15 * wanted), task


def test_every_task_is_measured_on_a_model_that_looks_ahead(tmp_path: Path) -> None:
    texts.run(["tiny-mdm"], tmp_path, limit=2)
    table = texts.collect(tmp_path)
    assert set(table["task"]) == set(texts.TASKS)
    assert (table.groupby("task").size() == 2).all()
    assert table[["floating", "absorption top(1)"]].notna().all(axis=None)


def test_texts_go_on_where_they_were_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, measured = fl.load("tiny-arm"), []

    def measure(lens: fl.Lens, prompts: list[object], ids: list[str], **settings: object) -> pd.DataFrame:
        if "2" in ids and len(measured) == 2:
            raise KeyboardInterrupt
        measured.extend(ids)
        return pd.DataFrame({"id": ids, "floating": 0.5})

    monkeypatch.setattr(texts, "PART", 2)
    monkeypatch.setattr(texts, "measure_attention", measure)
    prompts = texts.prompts_of(lens, "question", 3)
    with pytest.raises(KeyboardInterrupt):
        texts.measure_in_parts(lens, "question", prompts, tmp_path)
    measured.append("interrupted")
    assert texts.measure_in_parts(lens, "question", prompts, tmp_path)["id"].tolist() == ["0", "1", "2"]
    assert measured == ["0", "1", "interrupted", "2"]


def test_answers_in_words_take_their_numbers_from_the_tables() -> None:
    stages = ("absent", "present", "replaced", "copied", "misled", "withdrawn")
    shares = {"accuracy_words": [0, 0.6, 0.5, 0.7, 0.4, 0.02], "outdated": [None, None, 0.125, 0, 0, 0]}
    table = pd.DataFrame({"model": "m", "data": "d", "stage": stages, "misled": [None] * 4 + [0.25, None], **shares})
    looked = pd.DataFrame(
        {"model": "m", "data": "d", "stage": "misled", "role": ["misleading", "current"], "per_token": [1.5, 0.75]}
    )
    said = words.deployment_in_words(table, looked)
    for part in (
        "60 % of",
        "50 % after",
        "40 % beside",
        "2 % after",
        "12 % of",
        "to 25 %",
        "1.50 for the mis",
        "0.75 for the cur",
    ):
        assert part in said
    rows = [
        {"id": str(i), "model": model, "data": "d", "condition": "present", "accuracy_words": float(i < right)}
        for model, right in (("tiny-mdm", 9), ("tiny-arm", 0))
        for i in range(12)
    ]
    said = words.pairs_in_words(pd.DataFrame(rows))
    assert "tiny-mdm minus tiny-arm on d: present +75 [32, 96]." in said  # as in the doctest of interval_of_difference
    assert words.pairs_in_words(pd.DataFrame(rows[:12])) == ""
    film = pd.DataFrame(
        {"trained": [-1, -1, 500, 500], "layer": [0, 1, 0, 1], "absorption first": [10.0, 30, 1, 0]}
    ).assign(**{"absorption top(1)": [20.0, 30, 40, 60]})
    lines = words.film_in_words(film).splitlines()
    assert "SmolLM2 itself" in lines[2] and "20.0 %" in lines[2] and "at most 30.0 % (layer 1)" in lines[2]
    assert "after 500 tokens" in lines[3] and "0.5 %" in lines[3] and "at most 60.0 %" in lines[3]


def test_the_plan_counts_only_what_is_still_to_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job(name, ("eval", "tiny-arm", "--limit", "5"), "", ("tiny-arm",), 100000) for name in ("a", "b", "c")]
    command = ["eval", "tiny-arm", "--limit", "5"]
    kept = {"a": {"words": command, "seconds": 7200}, "b": {"words": ["eval", "tiny-arm"], "seconds": 60}}
    page.print_plan(jobs, kept)
    first, second, third, total = capsys.readouterr().out.splitlines()
    assert "kept, 2.00 h" in first and "100000 answers" in second and "100000 answers" in third
    hours = float(second.split()[1])
    assert hours > 0.1
    assert float(total.split()[3]) == pytest.approx(2 * hours, abs=0.011)


def answers(model: str, kind: str, right: tuple[int, ...], **columns: object) -> pd.DataFrame:
    table = pd.DataFrame({"id": [str(i) for i in range(len(right))], "accuracy": [float(x) for x in right]})
    about = {"model": model, "kind": kind, "data": "d", "condition": "open-book", "stress": "", "level": "", "x": None}
    about |= {"intervention": "", "of": "", "question": "who?", "answer": "me", "gold": "me"} | columns
    scores = {name: table["accuracy"] for name in ("em", "accuracy_words", "f1")}
    return table.assign(**about, **scores)


def test_scores_are_kept_without_the_text_of_questions_and_answers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    answers("m", "mdm", (1, 0)).to_parquet(run / "answers.parquet")
    keep(run, tmp_path / "kept" / "run", {"seconds": 1.0, "words": []})
    found = scores_of(kept_runs(tmp_path / "kept"))
    assert found["accuracy"].tolist() == [1.0, 0.0]
    assert not {"question", "answer", "gold"} & set(found.columns)


def test_models_that_answered_the_same_questions_in_runs_of_their_own_are_compared(tmp_path: Path) -> None:
    rights = {("smollm2-mdm", "mdm"): (1, 1, 1, 1), ("smollm2-arm", "arm"): (1, 0, 0, 0)}
    for (model, kind), right in rights.items():
        run = tmp_path / "runs" / f"real-answers-nq-{model}"
        run.mkdir(parents=True)
        closed = answers(model, kind, (0, 0, 0, 0), condition="closed-book")
        pd.concat([answers(model, kind, right), closed]).to_parquet(run / "answers.parquet")
        keep(run, tmp_path / "kept" / run.name, {"seconds": 1.0, "words": []})
    found = verdicts.claims_of(kept_runs(tmp_path / "kept")).set_index("id")
    assert found.loc["knowledge.gain", "run"] == "real-answers-nq"
    assert found.loc["knowledge.gain", "models"] == "smollm2-mdm, smollm2-arm"
    assert found.loc["knowledge.gain", "value"] == pytest.approx(0.75)


def test_one_verdict_per_claim_and_model_is_shown_at_a_glance(tmp_path: Path) -> None:
    pairs = ("a, smollm2", "a, smollm2-arm", "b", "a, smollm2")
    table = pd.DataFrame(
        {"models": pairs, "id": ["x", "x", "y", "z"], "claim": "c", "value": [1.0, 2, 3, 4], "verdict": "holds"}
    )
    shown = verdicts.at_a_glance(table)
    assert shown["value"].tolist() == [2.0, 3.0, 4.0] and shown["model"].tolist() == ["a", "b", "a"]
    draw.glance(shown, {"x": "LLaDA 1"}, ("a", "b"), tmp_path / "glance.png")
    assert (tmp_path / "glance.png").stat().st_size > 1000


def test_verdicts_and_stress_tests_in_words_take_their_numbers_from_the_tables() -> None:
    shown = pd.DataFrame(
        {"model": ["m", "m", "m"], "source": ["arXiv 2601.07894", "arXiv 2601.07894, Table 1", "other"],
         "verdict": ["holds", "holds", "inconclusive"]}
    )  # fmt: skip
    said = words.verdicts_in_words(shown, verdicts.PAPER)
    assert "- m: of the paper's claims, 2 holds; of claims from other papers, 1 inconclusive." in said
    levels = [
        answers("m", "mdm", (1, 1), stress="noise", level="0"),
        answers("m", "mdm", (1, 0), stress="noise", level="8"),
    ]
    assert "- noise on d (0, 8; 2 questions): m 100 % / 50 %." in words.stress_in_words(pd.concat(levels))
    shown = shown.assign(id=["heads.deep", "heads.deep", "other"], value=[0.5, 0.25, 1.0])
    shown.loc[1, ["model", "verdict"]] = ["k", "fails"]
    assert words.summary_in_words(shown) == "- Retrieval heads sit deep in m (0.5); they do not in k (0.25)."
    rows = pd.DataFrame({"claim": "It floats", "models": ["a, b", "c"], "verdict": "holds", "value": [0.5, 1.0]})
    assert words.claims_in_words(rows) == "- It floats: holds for a and b (0.5), c (1)."
    claims = [
        claim(["tiny-ssm"], "holds", 0.25) | {"id": "drift.renewal"},
        claim(["tiny-ssm"], "fails", 0.0),
    ]
    said = words.floating_in_words(claims)
    assert (
        said.startswith("**Answer**: yes.") and "elsewhere at the end than at the beginning (0.25 [0.15, 0.35])" in said
    )
    assert "they do not move more than those of the ARM (0.00 [-0.10, 0.10])" in said
    assert words.floating_in_words([claim(["m"], "fails", 0.0)]).startswith("**Answer**: not by these claims.")
