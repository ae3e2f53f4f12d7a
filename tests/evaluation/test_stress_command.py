"""floatlens stress, as a user runs it, on small random models."""

from __future__ import annotations

import json

import pandas
import pytest
import typer
from typer.testing import CliRunner

import floatlens
from floatlens.cli.main import list_options
from floatlens.cli.stress import command
from floatlens.errors import FloatLensError
from floatlens.evaluation import curves
from floatlens.evaluation.stress import STRESSES, StressOptions
from floatlens.store.folder import RunFolder
from floatlens.trace.trace import Trace

app = typer.Typer()
app.command()(list_options(command))
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


def test_a_resumed_stress_test_of_fewer_questions_has_their_own_distractors(checkpoints, data, tmp_path):
    words = ("noise", checkpoints["mdm"], "--data", data, "--levels", "0,1", *SHORT)
    ask(*words, "--out", tmp_path / "run")
    ask(*words, "--limit", 3, "--out", tmp_path / "run", "--resume")
    ask(*words, "--limit", 3, "--out", tmp_path / "fresh")
    resumed, fresh = (pandas.read_parquet(tmp_path / name / "answers.parquet") for name in ("run", "fresh"))
    pandas.testing.assert_frame_equal(resumed, fresh)


def test_every_level_is_asked_again_under_an_intervention_and_its_control(checkpoints, data, tmp_path):
    spec = "mask-positions(region=gold)"
    options = ("--levels", "0,2", "--intervention", spec, "--controls", "3,4", "--out", tmp_path / "run")
    found = json.loads(ask("noise", checkpoints["mdm"], "--data", data, "--json", *options, *SHORT).stdout)
    answers = pandas.read_parquet(tmp_path / "run" / "answers.parquet")
    assert len(answers) == 2 * 4 * 6 and set(answers["of"]) == {"", spec}
    assert {row["intervention"] for row in found["robustness"]} == set(answers["intervention"])
    (effect,) = found["effects"]
    assert effect["controls"] == 2 and set(effect["beyond"]) == {"accuracy", "loss"}
    lens = floatlens.load(checkpoints["mdm"])
    level = next(level for level in noise_levels(data) if level.name == "2")
    for sample in level.samples:
        prompt = lens.prompt(sample.question, sample.passages)
        with lens.intervene(spec):
            wanted = lens.generate(prompt, max_new_tokens=4, steps=4).text.strip()
        row = answers[(answers["id"] == sample.id) & (answers["condition"] == f"noise=2 under {spec}")]
        assert list(row["answer"]) == [wanted]


def noise_levels(data):
    return STRESSES["noise"].levels(list(floatlens.read(data)), StressOptions(values=(0, 2)))


def test_the_effect_on_robustness_is_the_paired_difference_of_losses():
    """Two questions, two levels: right everywhere without interventions; under it the second level is lost."""
    rows = []
    scores = {"": (1, 1), "mask": (1, 0), "mask, random=0": (1, 1), "mask, random=1": (1, 0)}
    for intervention, values in scores.items():
        for level, value in enumerate(values):
            for id_ in "ab":
                about = {
                    "id": id_,
                    "model": "m",
                    "data": "d",
                    "stress": "noise",
                    "level": str(level),
                    "x": float(level),
                }
                of = "mask" if intervention else ""
                rows.append({**about, "intervention": intervention, "of": of, "accuracy": float(value)})
    (found,) = curves.effects(pandas.DataFrame(rows))
    assert found["change"]["accuracy"]["value"] == -0.5 and found["change"]["loss"]["value"] == 1
    assert found["beyond"]["accuracy"]["value"] == -0.25 and found["beyond"]["loss"]["value"] == 0.5


def test_what_cannot_work_is_refused_before_anything_is_loaded(checkpoints, data, monkeypatch):
    monkeypatch.setattr("floatlens.lens.load", lambda *a, **k: pytest.fail("loaded"))
    for arguments, message in (
        (("heat", checkpoints["mdm"], "--data", data), "unknown stress 'heat'"),
        (("noise", checkpoints["mdm"], "--data", data, "--trace"), "--trace needs --out"),
        (("noise", checkpoints["mdm"], "--data", data, "--levels", "x"), "--levels 'x' is not understood"),
        (("noise", checkpoints["mdm"], "--data", data, "--score", "bleu"), "unknown score 'bleu'"),
        (
            ("masks", checkpoints["mdm"], "--data", data, "--levels", "6", "--sampler-set", "block_length=4"),
            "block_length 4",
        ),
        (
            ("noise", checkpoints["mdm"], "--data", data, "--intervention", "mask-anchors(layers=9)"),
            "layer 9 does not exist",
        ),
        (
            ("position", checkpoints["mdm"], "--data", data, "--levels", "7"),
            "gold position 7 in --levels is out of range",
        ),
    ):
        with pytest.raises(FloatLensError, match=message):
            ask(*arguments)
