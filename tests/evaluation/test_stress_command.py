"""floatlens stress, as a user runs it, on small random models."""

from __future__ import annotations

import json

import pandas
import pytest
import typer
from typer.testing import CliRunner

from floatlens.cli.stress import command
from floatlens.errors import FloatLensError
from floatlens.record.trace import Trace
from floatlens.runs.folder import RunFolder

app = typer.Typer()
app.command()(command)
SHORT = ("--max-new-tokens", 4, "--steps", 4)


def ask(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception:
        raise result.exception
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "towns.jsonl"
    rows = [
        {
            "id": f"q{i}",
            "question": f"Where does Tarn{i} live?",
            "answers": [f"Molen {i}"],
            "passages": [f"Tarn{i} lives in Molen {i}.", f"Molen {i} is far.", f"Oder{i} bakes.", f"Rusk{i} burnt."],
            "gold": [0, 1],
        }
        for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("noise", ["0", "1", "2"]),
        ("position", ["0", "1", "2", "3"]),
        ("layout", ["together", "apart 1", "apart 2", "reversed", "shuffled"]),
        ("masks", ["4", "8"]),
        ("query", ["after", "before", "both"]),
    ],
)
def test_each_stress_gives_a_curve_and_its_numbers(checkpoints, data, name, levels):
    chosen = {"noise": ("--levels", "0,1,2"), "masks": ("--levels", "4,8")}.get(name, ())
    found = json.loads(ask(name, checkpoints["mdm"], "--data", data, "--json", *chosen, *SHORT).stdout)
    assert [entry["level"] for entry in found["results"]] == levels
    assert all(entry["n"] == 6 and entry["stress"] == name for entry in found["results"])
    (numbers,) = found["robustness"]
    assert 0 <= numbers["range"] <= 1 and ("slope" in numbers) == (name != "query")


def test_traces_are_kept_and_change_no_answer(checkpoints, data, tmp_path):
    models = (checkpoints["mdm"], checkpoints["arm"])
    ask("position", *models, "--data", data, "--levels", "0,2", "--out", tmp_path / "plain", *SHORT)
    ask("position", *models, "--data", data, "--levels", "0,2", "--trace", "--out", tmp_path / "traced", *SHORT)
    plain, traced = (pandas.read_parquet(tmp_path / n / "answers.parquet") for n in ("plain", "traced"))
    assert list(plain["answer"]) == list(traced["answer"]) and list(plain["steps"]) == list(traced["steps"])
    assert plain["confidence"].to_numpy() == pytest.approx(traced["confidence"].to_numpy(), abs=1e-5)
    kept = RunFolder.open(tmp_path / "traced").samples()
    assert len(kept) == 2 * 2 * 6
    trace = Trace.open(dict(kept)["towns, position=2, q3"])
    assert [r.name for r in trace.regions if r.name.startswith("doc")] == ["doc1", "doc2", "doc3", "doc4"]


def test_what_cannot_work_is_refused_before_anything_is_loaded(checkpoints, data, monkeypatch):
    monkeypatch.setattr("floatlens.lens.load", lambda *a, **k: pytest.fail("loaded"))
    for arguments, message in (
        (("heat", checkpoints["mdm"], "--data", data), "there is no stress 'heat'"),
        (("noise", checkpoints["mdm"], "--data", data, "--trace"), "--trace needs --out"),
        (("noise", checkpoints["mdm"], "--data", data, "--levels", "x"), "--levels 'x' is not understood"),
        (("noise", checkpoints["mdm"], "--data", data, "--score", "bleu"), "score 'bleu' is not known"),
        (("masks", checkpoints["mdm"], "--data", data, "--levels", "6", "--block-length", 4), "block_length 4"),
        (
            ("position", checkpoints["mdm"], "--data", data, "--levels", "7"),
            "gold position 7 in --levels is out of range",
        ),
    ):
        with pytest.raises(FloatLensError, match=message):
            ask(*arguments)
