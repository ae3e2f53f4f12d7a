"""A collection that changes between questions: retrieved passages at each stage, and the scoring of answers."""

from __future__ import annotations

import json
import random

import numpy as np
import pandas
import pytest
import typer
from typer.testing import CliRunner

from floatlens.cli.main import list_options
from floatlens.cli.stress import command
from floatlens.data.sample import Passage, Sample
from floatlens.errors import FloatLensError
from floatlens.evaluation import collection
from floatlens.evaluation.collection import STAGES

PLACES = ["Molen", "Rusk", "Tarn", "Oder", "Vann", "Helm"]


def samples():
    return [
        Sample(
            f"q{i}",
            f"Where does Person{i} live?",
            [place],
            [
                Passage(f"Person{i} does live in {place} with an old dog.", gold=True),
                Passage(f"Cats live near dog {i}."),
            ],
        )
        for i, place in enumerate(PLACES)
    ]


def test_each_stage_retrieves_what_the_collection_holds_then():
    index = collection.collection(samples())
    before = list(index)
    stages = collection.stream(samples(), index, passages=4)
    assert list(stages) == list(STAGES) and list(index) == before  # everything has been withdrawn again
    for i, life in enumerate(collection.lives(samples())):
        absent, present, replaced, copied, misled, withdrawn = (stages[stage][i] for stage in STAGES)
        old, new, wrong = life.sample.answers[0], life.new, life.wrong
        assert len({old, new, wrong}) == 3
        for one in (absent, withdrawn):
            assert set(one.meta["roles"]) <= {"other"} and "recall" not in one.meta
            assert not any(f"Person{i}" in p.text for p in one.passages)
        assert present.answers == [old] and old in present.passages[0].text and present.meta["recall"] == 1
        for one in (replaced, copied, misled):
            assert one.answers == [new] and one.meta["outdated"] == [old] and one.meta["recall"] == 1
            assert one.meta["answer_recall"] == 1 and not any(
                old in p.text.split() for p in one.passages if f"Person{i} " in p.text
            )
        assert copied.meta["roles"].count("copy") == collection.COPIES and replaced.meta["roles"].count("copy") == 0
        lies = [p for p, role in zip(misled.passages, misled.meta["roles"], strict=True) if role == "misleading"]
        assert [wrong in p.text for p in lies] == [True] and misled.meta["misled"] == [wrong]
        assert withdrawn.meta["outdated"] == [new]


def test_the_stream_is_the_same_for_every_model_and_differs_with_the_seed():
    streams = [collection.stream(samples(), collection.collection(samples()), seed=seed) for seed in (0, 0, 1)]
    assert streams[0] == streams[1] and streams[0] != streams[2]


def test_answers_are_counted_as_right_outdated_or_misled():
    stages = collection.stream(samples(), collection.collection(samples()), passages=4)
    rows = []
    for stage, several in stages.items():
        for number, sample in enumerate(several):
            said = (
                [*sample.answers, *sample.meta["outdated"], *sample.meta["misled"]][min(number, 2)]
                if stage == "misled"
                else ""
            )
            right = float(said == sample.answers[0])
            row = {"model": "m", "data": "d", "condition": f"collection={stage}", "level": stage, "id": sample.id}
            scores = {"accuracy_words": right, "recall": np.nan, "answer_recall": np.nan}
            rows.append({**row, "answer": said, "error": None, **scores})
    table = collection.summary(collection.with_outcomes(pandas.DataFrame(rows), {"d": stages})).set_index("stage")
    misled = table.loc["misled"]  # of six answers one is right, one outdated, four misled
    assert misled[["accuracy_words", "outdated", "misled"]].tolist() == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    assert np.isnan(table.loc["absent", "outdated"]) and np.isnan(table.loc["replaced", "misled"])
    none = table.loc["replaced"]  # none of six answers is outdated: the share may still be as high as 0.44
    expected = [0, 0, pytest.approx(0.443, abs=1e-3)]
    assert none[["outdated", "outdated_low", "outdated_high"]].tolist() == expected


def test_data_without_a_collection_is_refused():
    bare = [Sample("1", "Where?", ["Molen"], [Passage("Ada lives in Molen.", gold=True)])]
    with pytest.raises(FloatLensError, match="pass a collection with --corpus"):
        collection.collection(bare)
    with pytest.raises(FloatLensError, match="none of the 1 questions has a gold passage"):
        collection.lives([Sample("1", "Where?", ["Molen"], [Passage("Ada lives there.", gold=True)])])


def test_the_command_asks_every_stage_and_looks_at_the_passages(checkpoints, tmp_path):
    rows = [
        {
            "id": s.id,
            "question": s.question,
            "answers": s.answers,
            "passages": [p.text for p in s.passages],
            "gold": [0],
        }
        for s in samples()[:4]
    ]
    path = tmp_path / "people.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"Nobody lives in place {i}."}) + "\n" for i in range(5)))
    app = typer.Typer()
    app.command()(list_options(command))
    words = [
        "collection",
        checkpoints["mdm"],
        "--data",
        path,
        "--passages",
        5,
        "--max-new-tokens",
        4,
        "--trace",
        "--json",
    ]
    words += ["--corpus", corpus]
    made = CliRunner().invoke(app, [str(word) for word in (*words, "--out", tmp_path / "run")], catch_exceptions=False)
    found = json.loads(made.stdout)
    assert [row["stage"] for row in found["results"]] == list(STAGES) and all(row["n"] == 4 for row in found["results"])
    looked = pandas.read_parquet(tmp_path / "run" / "attention.parquet")
    assert set(looked[looked["stage"] == "withdrawn"]["role"]) <= {"other"}
    assert set(looked["role"]) >= {"current", "copy", "misleading", "other"} and (looked["share"] > 0).all()
    totals = looked.groupby(["stage", "id"])["share"].sum()
    assert (totals < 1).all()


def test_a_passage_is_changed_only_where_its_answer_can_be_replaced():
    home = Passage("Ada lives in Molen.")
    assert collection.can_change(home, ["Molen"])
    assert not collection.can_change(Passage("Ada lives in Mo-len."), ["Molen"])
    near = Passage("Ada lives in Molen, near Rusk.")
    assert collection.put_answer(near, ["molen"], "Tarn").text == "Ada lives in Tarn, near Rusk."
    assert collection.drop_word(home, "Molen", random.Random(0)).text == "Ada in Molen."
