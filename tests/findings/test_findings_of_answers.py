"""The claims on knowledge and stress are supported on planted answers exactly when they should be."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.findings.finding import CLAIMS
from floatlens.findings.knowledge import knowledge
from floatlens.findings.stress import stress


def planted(chances, n=150, seed=0, **labels):
    """Answers of models: `chances[model][condition]` is how likely an answer is right."""
    draw = np.random.default_rng(seed)
    luck = draw.random(n)  # a question is as hard for every model
    rows = []
    for model, by_condition in chances.items():
        for place, (condition, chance) in enumerate(by_condition.items()):
            for i in range(n):
                right = float((luck[i] + 0.3 * draw.random()) % 1 < chance)
                row = AnswerRecord(
                    f"q{i}",
                    "Q?",
                    ["a"],
                    model,
                    "d",
                    condition,
                    em=right,
                    accuracy=right,
                    accuracy_words=right,
                    f1=right,
                )
                row.kind = "mdm" if model.startswith("mdm") else "arm"
                if "=" in condition:
                    row.stress, _, row.level = condition.partition("=")
                    row.x = float(place) if row.stress != "query" else None
                rows.append(row)
    return answers_table(rows)


def books(closed, opened):
    return {"closed-book": closed, "open-book": opened}


@pytest.mark.parametrize(
    ("mdm", "arm", "gain", "twice", "ahead"),
    [
        ((0.1, 0.9), (0.1, 0.3), "holds", "holds", "holds"),
        ((0.1, 0.9), (0.1, 0.7), "holds", "not testable here", "holds"),  # the MDM cannot gain 120 points
        ((0.1, 0.4), (0.1, 0.5), "fails", "fails", "fails"),
        ((0.0, 0.15), (0.0, 0.05), "holds", "not testable here", "holds"),  # below 20 %
    ],
)
def test_the_gain_from_passages(mdm, arm, gain, twice, ahead):
    answers = planted({"mdm": books(*mdm), "arm": books(*arm)}, n=400)
    found = {v.id: v for v in knowledge.claims(answers)}
    assert {name: v.verdict for name, v in found.items()} == {
        "knowledge.gain": gain,
        "knowledge.twice": twice,
        "knowledge.ahead": ahead,
    }
    scores = answers.groupby(["model", "condition"])["accuracy"].mean()
    gains = {m: scores[m, "open-book"] - scores[m, "closed-book"] for m in ("mdm", "arm")}
    assert found["knowledge.twice"].value == pytest.approx(gains["mdm"] - 2 * gains["arm"])
    assert found["knowledge.gain"].value == pytest.approx(gains["mdm"] - gains["arm"])
    assert all(v.n == 400 and v.models == ("mdm", "arm") for v in found.values())
    assert all(v.interval[0] <= v.value <= v.interval[1] for v in found.values())


def test_knowledge_is_measured_question_by_question_and_drawn():
    answers = planted({"mdm": books(0.1, 0.9), "arm": books(0.1, 0.5)})
    measured = knowledge(answers)
    own = answers[answers["model"] == "mdm"].pivot(index="id", columns="condition", values="accuracy")
    gain = measured["gain"].values[measured["model"].values == "mdm"]
    assert gain.mean() == pytest.approx((own["open-book"] - own["closed-book"]).mean())
    data = knowledge.figure(measured, backend="none")
    assert len(data) == 4 and set(data["condition"]) == {"closed-book", "open-book"}
    assert len(knowledge.figure(measured).axes) == 1
    assert len(knowledge.claims(measured)) == 3


def test_one_condition_or_one_model_alone_decides_nothing():
    one = knowledge.claim(planted({"mdm": {"open-book": 0.5}, "arm": {"open-book": 0.4}}))
    assert one.verdict == "not testable here" and one.n == 0
    assert "no ARM" in knowledge.claim(planted({"mdm": books(0.1, 0.5)})).reason
    with pytest.raises(FloatLensError, match="unknown score 'bleu'"):
        knowledge.measure(planted({"mdm": books(0.1, 0.5)}), score="bleu")
    with pytest.raises(FloatLensError, match="neither open-book nor closed-book"):
        knowledge.measure(planted({"mdm": {"noise=0": 0.5}}))


FLAT, BENT = (
    {"position=0": 0.7, "position=1": 0.7, "position=2": 0.7},
    {"position=0": 0.9, "position=1": 0.3, "position=2": 0.8},
)


LESS = {"position=0": 0.9, "position=1": 0.7, "position=2": 0.9}


def under(stress_name, answers):
    return CLAIMS[f"stress.{stress_name}"].verdict(stress.measure(answers))


@pytest.mark.parametrize(
    ("mdm", "arm", "verdict"), [(FLAT, BENT, "holds"), (BENT, FLAT, "not testable here"), (BENT, LESS, "fails")]
)
def test_the_ends_against_the_middle(mdm, arm, verdict):
    answers = planted({"mdm": mdm, "arm": arm}, n=400)
    found = under("position", answers)
    assert found.verdict == verdict and found.n == 400
    means = answers.groupby(["model", "level"])["accuracy"].mean().unstack()
    lost = (means["0"] + means["2"]) / 2 - means["1"]
    assert found.value == pytest.approx(lost["arm"] - lost["mdm"])


def test_layouts_other_than_together():
    mdm = {"layout=together": 0.8, "layout=apart 2": 0.8, "layout=reversed": 0.8}
    arm = {"layout=together": 0.8, "layout=apart 2": 0.4, "layout=reversed": 0.4}
    found = under("layout", planted({"mdm": mdm, "arm": arm}, n=400))
    assert found.verdict == "holds" and found.value == pytest.approx(0.4, abs=0.1)
    turned = under("layout", planted({"mdm": arm, "arm": mdm}, n=400))
    assert turned.verdict == "not testable here" and turned.reason.startswith("no room: the ARM loses")


def levels(*chances):
    return {f"noise={2 * i}": chance for i, chance in enumerate(chances)}


@pytest.mark.parametrize(
    ("mdm", "arm", "verdict"),
    [
        ((0.9, 0.8, 0.8), (0.9, 0.5, 0.3), "holds"),
        ((0.9, 0.5, 0.3), (0.9, 0.8, 0.7), "fails"),
        ((0.1, 0.1, 0.1), (0.9, 0.5, 0.3), "not testable here"),
    ],
)
def test_loss_under_noise(mdm, arm, verdict):
    assert under("noise", planted({"mdm": levels(*mdm), "arm": levels(*arm)})).verdict == verdict


def test_stress_runs_are_put_together_from_folders(tmp_path):
    for name, table in (
        ("a", planted({"mdm": FLAT, "arm": BENT})),
        ("b", planted({"mdm": levels(1, 1), "arm": levels(1, 0)})),
    ):
        (tmp_path / name).mkdir()
        table.to_parquet(tmp_path / name / "answers.parquet")
    measured = stress([tmp_path / "a", tmp_path / "b"])
    found = {v.id: v.verdict for v in stress.claims(measured)}
    assert found == {
        "stress.noise": "holds",
        "stress.position": "holds",
        "stress.layout": "not testable here",
        "stress.masks": "not testable here",
        "stress.query": "not testable here",
    }
    data = stress.figure(measured, backend="none")
    assert set(data["stress"]) == {"position", "noise"} and len(data) == 2 * 3 + 2 * 2
    assert {"mean", "low", "high", "x", "level"} <= set(data)
    assert len(stress.figure(measured).axes) == 2


def test_levels_without_a_place_are_drawn_too():
    answers = planted({"mdm": {"query=after": 0.5, "query=before": 0.4, "query=both": 0.6}})
    assert len(stress.figure(answers).axes) == 1
    assert all(v.verdict == "not testable here" and "no answers under" in v.reason for v in stress.claims(answers))


def test_folders_without_answers_are_named(tmp_path):
    with pytest.raises(FloatLensError, match=r"has no answers\.parquet"):
        stress(tmp_path)
    pandas.DataFrame({"id": ["x"]}).to_parquet(tmp_path / "answers.parquet")
    with pytest.raises(FloatLensError, match="lacks the column 'model'"):
        knowledge(tmp_path)
    (tmp_path / "answers.parquet").write_bytes(b"no")
    with pytest.raises(FloatLensError, match="not a readable parquet file"):
        knowledge(tmp_path)
    with pytest.raises(FloatLensError, match="no answers under stress"):
        stress(planted({"mdm": books(0.1, 0.5)}))
