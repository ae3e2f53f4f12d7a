"""Generation that stops as soon as the answer can no longer change."""

from dataclasses import replace

import pytest

import floatlens as fl
from floatlens.decode.sampler import SAMPLERS

QUESTIONS = 8


@pytest.fixture(scope="module")
def lens():
    return fl.load("tiny-mdm")


@pytest.fixture(scope="module")
def prompts(lens):
    samples = fl.read("world:fresh", limit=QUESTIONS, passages=5)
    return [lens.prompt(sample.question, sample.passages) for sample in samples]


@pytest.fixture(scope="module")
def full(lens, prompts):
    return [lens.generate(prompt, max_new_tokens=16, steps=16) for prompt in prompts]


def without_steps(several):
    return [replace(made, steps=0) for made in several]


def test_the_answers_are_those_of_all_steps(lens, prompts, full):
    short = [lens.generate(prompt, max_new_tokens=16, stop_when_answered=True) for prompt in prompts]
    assert without_steps(short) == without_steps(full)
    assert any(made.steps < 16 for made in short)


def test_a_batch_runs_until_its_last_answer_and_counts_the_passes_of_each(lens, prompts, full):
    one_by_one = [lens.generate(prompt, max_new_tokens=16, stop_when_answered=True) for prompt in prompts]
    together = lens.generate(prompts, max_new_tokens=16, stop_when_answered=True)
    assert [made.steps for made in together] == [made.steps for made in one_by_one]
    assert [made.text for made in together] == [made.text for made in full]


def test_samplers_that_revise_their_tokens_run_all_steps(lens, prompts, monkeypatch):
    assert [name for name in SAMPLERS if SAMPLERS[name].revises] == ["diffusion-gemma", "llada2.1"]
    monkeypatch.setattr(SAMPLERS["llada"], "revises", True)
    made = lens.generate(prompts, max_new_tokens=16, stop_when_answered=True)
    assert [one.steps for one in made] == [16] * QUESTIONS


def test_a_text_with_masks_is_filled_to_the_last_mask(lens):
    prompt = lens.infill_prompt("The city of [MASK] [MASK] lies by the [MASK] .")
    assert lens.generate(prompt, stop_when_answered=True) == lens.generate(prompt)
