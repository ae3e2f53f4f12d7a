"""The metrics give the numbers of the published scripts, pair by pair."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatlens.data.layouts import gold_answers
from floatlens.data.sample import normalise
from floatlens.evaluation import metrics


@pytest.fixture(scope="module")
def golden():
    folder = Path(os.environ.get("FLOATLENS_GOLDEN", Path(__file__).parents[1] / "golden"))
    path = folder / "analysis" / "qa_metrics.json"
    if not path.exists():
        pytest.skip(f"{path} is not there; set FLOATLENS_GOLDEN to a golden folder")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.golden
def test_each_pair_reproduces(golden):
    assert golden["pairs"]
    for pair in golden["pairs"]:
        said, gold = pair["prediction"], pair["ground_truth"]
        assert normalise(said) == pair["norm_prediction"], pair
        assert normalise(gold) == pair["norm_ground_truth"], pair
        assert metrics.accuracy(said, gold) == pair["accuracy"], pair
        assert metrics.f1(said, gold) == pair["f1"], pair


@pytest.mark.golden
def test_several_gold_answers_reproduce(golden):
    assert golden["compute_metrics"]
    for case in golden["compute_metrics"]:
        scores = metrics.score(case["prediction"], case["ground_truths"])
        assert (scores["accuracy"], scores["f1"]) == (case["accuracy"], case["f1"]), case


@pytest.mark.golden
def test_gold_answers_are_found_where_the_published_code_finds_them(golden):
    assert golden["extract_ground_truth_llada"]
    for case in golden["extract_ground_truth_llada"]:
        assert gold_answers(case["data"]) == case["ground_truths"], case


def test_whole_words_do_not_count_a_number_inside_another():
    assert metrics.score("142", ["42"]) == {"em": 0.0, "accuracy": 1.0, "accuracy_words": 0.0, "f1": 0.0}
    assert metrics.score("142", []) == dict.fromkeys(metrics.SCORES, 0.0)
    assert metrics.accuracy_words("new york city", "york") == 1.0


@given(st.text(), st.text())
def test_the_scores_are_ordered(said, gold):
    scores = metrics.score(said, [gold])
    assert scores["accuracy_words"] <= scores["accuracy"]
    assert scores["em"] <= scores["f1"] <= 1


@given(st.text())
def test_normalising_twice_changes_words_no_more_than_articles(text):
    once = normalise(text)
    assert once == " ".join(once.split())


def test_articles_case_and_punctuation_do_not_count():
    assert metrics.exact_match("The Paris.", "paris") == 1.0
    assert metrics.accuracy("It is 142", "42") == 1.0
    assert metrics.accuracy_words("It is 142", "42") == 0.0 and metrics.accuracy_words("It is 42.", "42") == 1.0
