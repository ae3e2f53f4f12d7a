"""floatlens eval, as a user runs it, on small random models: output, files, errors and resuming."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas
import pytest
import torch
import typer
from typer.testing import CliRunner

from floatlens.cli.eval import command
from floatlens.cli.main import list_options, run
from floatlens.errors import FloatLensError
from floatlens.evaluation.sources import open_sources, place_gold, with_gold_at
from floatlens.evaluation.stress import STRESSES, StressOptions
from floatlens.lens import Lens
from floatlens.store.folder import RunFolder

app = typer.Typer()
app.command()(list_options(command))


def ask(*arguments, fails=False):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not fails:
        raise result.exception
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "towns.jsonl"
    rows = [
        {
            "id": f"../q{i}",
            "question": f"Where does {'Ada ' * (i % 4)}Tarn live?",
            "answers": [f"Molen {i}"],
            "ctxs": [
                {"text": f"Tarn lives in {'Rusk' if j != i % 3 else 'Molen'} {i}.", "isgold": j == i % 3}
                for j in range(3)
            ],
        }
        for i in range(9)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n")
    return path


SHORT = ("--max-new-tokens", 4, "--steps", 4)


def test_json_is_one_object_with_the_agreed_fields(checkpoints, data):
    result = ask(checkpoints["mdm"], checkpoints["arm"], "--data", data, "--both", "--json", *SHORT)
    found = json.loads(result.stdout)
    assert len(found["results"]) == 4 and found["run"] is None
    for entry in found["results"]:
        assert {"model", "data", "condition", "passages", "n", "em", "accuracy", "f1", "intervals"} <= set(entry)
        assert entry["data"] == "towns" and entry["n"] == 9 and 0 <= entry["f1"] <= 1
        assert entry["passages"] == (3 if entry["condition"] == "open-book" else 0)
    assert {c["left"]["condition"] for c in found["comparisons"]} == {"open-book", "closed-book"}
    assert "line 10: is not JSON" in found["problems"]["towns"]
    assert found["settings"]["max_new_tokens"] == 4


def test_a_run_folder_has_answers_tables_and_what_was_asked(checkpoints, data, tmp_path):
    out = tmp_path / "run"
    result = ask(checkpoints["mdm"], "--data", data, "--limit", 5, "--out", out, *SHORT)
    assert "scores in %" in result.stdout
    answers = pandas.read_parquet(out / "answers.parquet")
    assert list(answers["id"]) == [f"../q{i}" for i in range(5)] and list(answers["gold"][2]) == ["Molen 2"]
    assert answers["error"].isna().all() and answers["steps"].eq(4).all()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["asked"]["read"]["limit"] == 5 and manifest["asked"]["sampling"]["steps"] == 4
    written = {p.name for p in out.iterdir()}
    assert {"table1.md", "table1.tex", "table1.csv", "results.json"} <= written and "lock" not in written
    assert not list(tmp_path.glob("q*"))  # an id such as ../q0 is never a path
    with pytest.raises(FloatLensError, match="is already a run"):
        ask(checkpoints["mdm"], "--data", data, "--limit", 5, "--out", out, *SHORT)


@pytest.mark.parametrize("option", ["--passages", "--max-passages"])
def test_no_passages_are_closed_book(checkpoints, data, option):
    [entry] = json.loads(ask(checkpoints["arm"], "--data", data, option, 0, "--json", *SHORT).stdout)["results"]
    assert entry["condition"] == "closed-book" and entry["passages"] == 0 and entry["n"] == 9


@pytest.mark.parametrize("kind", ["arm", "mdm"])
def test_batches_change_no_answer(checkpoints, data, tmp_path, kind):
    for size in (1, 4, 9):
        ask(checkpoints[kind], "--data", data, "--batch-size", size, "--out", tmp_path / str(size), *SHORT)
    one, *others = [pandas.read_parquet(tmp_path / str(size) / "answers.parquet") for size in (1, 4, 9)]
    assert one["answer"].nunique() > 1
    for other in others:
        assert list(one["answer"]) == list(other["answer"])
        assert one["confidence"].to_numpy() == pytest.approx(other["confidence"].to_numpy(), abs=1e-5)


def test_a_run_that_was_cut_off_resumes_and_ends_with_the_same_answers(checkpoints, data, tmp_path, monkeypatch):
    common = (checkpoints["arm"], "--data", data, "--both", "--batch-size", 2, *SHORT)
    ask(*common, "--out", tmp_path / "whole")
    real, count = RunFolder.put, 0

    def cut(*arguments):
        nonlocal count
        count += 1
        if count == 12:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(RunFolder, "put", cut)
    ask(*common, "--out", tmp_path / "cut", fails=True)
    assert not (tmp_path / "cut" / "answers.parquet").exists()
    assert len(RunFolder.open(tmp_path / "cut").results()) == 11
    monkeypatch.setattr(RunFolder, "put", real)
    [*_, last] = json.loads(ask(*common, "--json", "--out", tmp_path / "cut", "--resume").stdout)["results"]
    assert last["questions_per_second"] > 0
    again = json.loads(ask(*common, "--json", "--out", tmp_path / "cut", "--resume").stdout)["results"]
    assert [entry["questions_per_second"] for entry in again] == [None] * len(again)  # nothing was asked
    assert str(tmp_path) not in (tmp_path / "cut" / "results.json").read_text()
    whole, cut_off = (pandas.read_parquet(tmp_path / n / "answers.parquet") for n in ("whole", "cut"))
    pandas.testing.assert_frame_equal(whole, cut_off, check_exact=True)
    few = json.loads(ask(*common, "--json", "--out", tmp_path / "cut", "--resume", "--limit", 3).stdout)["results"]
    assert [(entry["n"], entry["questions_per_second"]) for entry in few] == [(3, None)] * 2  # fewer of the same run


def test_a_refused_resume_prints_all_that_differs_and_nothing_else(checkpoints, data, tmp_path):
    common = (checkpoints["arm"], "--data", data, "--limit", 2, "--out", tmp_path / "run")
    ask(*common, "--max-new-tokens", 4)
    with pytest.raises(FloatLensError) as refused:
        ask(
            *common[:3],
            "--limit",
            4,
            *common[5:],
            "--max-new-tokens",
            5,
            "--sampler-set",
            "temperature=0.5",
            "--resume",
        )
    differing = (
        'read.limit: 2, now 4; sampling.max_new_tokens: 4, now 5; sampling.sampler: null, now {"temperature": 0.5}'
    )
    assert f"started with other settings ({differing}); use the same" in str(refused.value)
    with pytest.raises(FloatLensError) as refused:
        ask(checkpoints["mdm"], *common[1:], "--max-new-tokens", 4, "--resume")
    names = [json.dumps([str(checkpoints[name])]) for name in ("arm", "mdm")]
    assert f"(models: {names[0]}, now {names[1]}); use the same" in str(refused.value)


def test_a_gold_passage_that_is_left_out_is_counted_and_said(checkpoints, data, tmp_path):
    result = ask(checkpoints["arm"], "--data", data, "--max-passages", 1, "--json", *SHORT)
    assert json.loads(result.stdout)["gold_dropped"] == {"towns": 6}
    said = "towns: --max-passages 1 left out the gold passage of 6 of 9 questions; --passages 1 keeps it"
    problems = json.loads(result.stdout)["problems"]["towns"]
    assert said.removeprefix("towns: ") in problems and said.removeprefix("towns: ") in result.stderr
    kept = json.loads(ask(checkpoints["arm"], "--data", data, "--passages", 1, "--json", *SHORT).stdout)
    assert kept["gold_dropped"] == {} and "gold" not in kept["problems"]["towns"]


def test_the_gold_passage_is_put_at_each_position_as_by_the_stress_test(checkpoints, data, tmp_path):
    out = tmp_path / "run"
    result = ask(checkpoints["arm"], "--data", data, "--gold-at", "1,3", "--both", "--json", "--out", out, *SHORT)
    conditions = [entry["condition"] for entry in json.loads(result.stdout)["results"]]
    assert conditions == ["closed-book", "open-book (gold at 1)", "open-book (gold at 3)"]
    answers = pandas.read_parquet(out / "answers.parquet").groupby("condition")["gold_at"]
    assert {tuple(each) for each in answers.get_group(conditions[2])} == {(2,)}
    samples = list(open_sources([str(data)])[0].samples())
    levels = STRESSES["position"].levels(samples, StressOptions(values=(0, 2)))
    for level, position in zip(levels, (1, 3), strict=True):
        assert level.samples == [place_gold(sample, position) for sample in samples]
    traced = [sample.id for sample in with_gold_at(samples[:1], (1, 3))]
    assert traced == ["../q0 (gold at 1)", "../q0 (gold at 3)"]
    with pytest.raises(FloatLensError, match="--gold-at 4 is not possible for question '../q0' with 3 passages"):
        ask(checkpoints["arm"], "--data", data, "--gold-at", "4", "--out", tmp_path / "none", *SHORT)
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("name", ["eval", "trace", "stress noise", "ablate", "study"])
def test_a_device_that_is_not_there_is_one_sentence_and_leaves_nothing_behind(
    checkpoints, data, tmp_path, name, capsys
):
    words = [*name.split(), checkpoints["arm"], "--data", str(data), "--device", "cuda", "--out", str(tmp_path / "run")]
    assert run(words) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("floatlens: --device cuda cannot be used")
    assert not (tmp_path / "run").exists()


def test_the_manifest_tells_models_data_and_template_apart(checkpoints, data, tmp_path):
    common = (checkpoints["arm"], "--closed-book", "--limit", 2, *SHORT)
    mine = tmp_path / "mine.jsonl"
    mine.write_text(data.read_text())
    ask(*common, "--data", mine, "--out", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    weights = hashlib.sha256((Path(checkpoints["arm"]) / "model.safetensors").read_bytes()).hexdigest()
    assert manifest["models"][checkpoints["arm"]]["files"]["model.safetensors"] == weights
    assert manifest["data"][str(mine)] == hashlib.sha256(mine.read_bytes()).hexdigest()
    assert {"torch", "transformers", "floatlens"} <= set(manifest["versions"])
    mine.write_text(data.read_text().replace("Molen 8", "Molen 9"))
    with pytest.raises(FloatLensError, match="data.*mine.jsonl"):
        ask(*common, "--data", mine, "--out", tmp_path / "run", "--resume")


def test_a_resumed_run_asks_a_question_that_failed_again(checkpoints, data, tmp_path, monkeypatch):
    common = (checkpoints["arm"], "--data", data, "--batch-size", 4, "--out", tmp_path / "run", *SHORT)
    ask(*common[:-6], *SHORT, "--batch-size", 4, "--out", tmp_path / "whole")
    real = Lens.generate

    def fails(self, prompts, **settings):
        if any(prompt.sample_id == "../q3" for prompt in prompts):
            raise RuntimeError("cosmic ray")
        return real(self, prompts, **settings)

    monkeypatch.setattr(Lens, "generate", fails)
    ask(*common)
    monkeypatch.setattr(Lens, "generate", real)
    assert [e["reason"] for e in RunFolder.open(tmp_path / "run").errors()] == ["cosmic ray"]
    rows = pandas.read_parquet(tmp_path / "run" / "answers.parquet").set_index("id")
    assert rows["error"]["../q3"] == "cosmic ray" and rows["error"].notna().sum() == 1
    ask(*common, "--resume")
    whole, again = (pandas.read_parquet(tmp_path / n / "answers.parquet") for n in ("whole", "run"))
    assert list(whole["answer"]) == list(again["answer"]) and again["error"].isna().all()
    assert RunFolder.open(tmp_path / "run").errors() == []


def test_passages_to_order_and_retrieved(checkpoints, data, tmp_path):
    one = json.loads(ask(checkpoints["arm"], "--data", data, "--passages", 1, "--json", *SHORT).stdout)["results"][0]
    assert one["passages"] == 1
    none = json.loads(ask(checkpoints["arm"], "--data", data, "--passages", 0, "--json", *SHORT).stdout)["results"][0]
    assert none["condition"] == "closed-book"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"Tarn lives in Molen {i}."}) + "\n" for i in range(9)))
    options = ("--corpus", corpus, "--max-passages", 2)
    got = json.loads(ask(checkpoints["arm"], "--data", data, "--json", *options, *SHORT).stdout)["results"][0]
    assert got["passages"] == 2 and 0 < got["recall"] <= 1 and 0 < got["answer_recall"] <= 1


def test_what_cannot_work_is_refused_before_anything_is_loaded(checkpoints, data, tmp_path, monkeypatch):
    monkeypatch.setattr("floatlens.lens.load", lambda *a, **k: pytest.fail("loaded"))
    model = checkpoints["mdm"]
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"question": "Who?", "answers": ["x"]}\n')
    for arguments, message in (
        ((model, "--data", data, "--max-new-tokens", 4, "--sampler-set", "block_length=3"), "block_length 3"),
        ((model, "--data", data, "--closed-book", "--both"), "cannot be combined"),
        ((model, "--data", data, "--resume"), "--resume needs --out"),
        ((model, "--data", data, "--limit", 0), "limit 0 is not a positive number"),
        ((model, "--data", tmp_path / "gone.jsonl"), "does not exist"),
        ((model, "--data", data, "--columns", "x"), "--columns 'x' is not understood"),
        ((model, "--data", bare), "has no passages; use --closed-book"),
    ):
        with pytest.raises(FloatLensError, match=message):
            ask(*arguments)
    assert not (tmp_path / "run").exists()


def test_no_answer_at_all_is_an_error(checkpoints, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"question": "why " * 25_000, "answers": ["x"]}) + "\n")
    with pytest.raises(FloatLensError, match=r"no question could be answered.*shorten the question"):
        ask(checkpoints["arm"], "--data", path, "--closed-book", "--out", tmp_path / "run", *SHORT)
    (row,) = pandas.read_parquet(tmp_path / "run" / "answers.parquet").to_dict("records")
    assert "shorten the question" in row["error"]
    assert "shorten" in (tmp_path / "run" / "errors.jsonl").read_text()
