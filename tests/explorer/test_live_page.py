"""The data of the page: models, interventions and example questions."""

from __future__ import annotations

from typing import Any

import pytest

import floatlens as fl
from floatlens.data.sample import Passage
from floatlens.evaluation.metrics import score
from floatlens.explorer.page import examples


def answer(model: str, example: dict[str, Any]) -> float:
    """Return the accuracy of the model's answer to an example."""
    lens = fl.load(model)
    passages = [Passage(each["text"], each["title"]) for each in example["passages"]]
    gold = [place for place, each in enumerate(example["passages"]) if each["gold"]]
    made = lens.generate(
        lens.prompt(example["question"], passages, gold=gold), max_new_tokens=example["max_new_tokens"]
    )
    return score(made.text, example["answers"])["accuracy"]


@pytest.mark.parametrize("model", ["tiny-mdm", "tiny-dream", "tiny-arm"])
def test_the_page_starts_with_a_question_that_a_bundled_model_answers_rightly(model: str) -> None:
    assert answer(model, examples(world=True)[0]) == 1.0


def test_a_model_of_real_english_starts_with_a_real_question() -> None:
    world, real = examples(world=True), examples(world=False)
    assert sorted(each["question"] for each in world) == sorted(each["question"] for each in real)
    assert real[0]["name"] == "a real fact" and world[0]["name"] == "one fact"
    assert all(any(each["gold"] for each in example["passages"]) for example in real)
