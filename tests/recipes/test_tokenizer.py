"""The tokenizer reproduces text, keeps every name in one token, and loads with AutoTokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from floatlens.data import prompt
from floatlens.data.world import NAMES, names, samples
from recipes.tiny import tokenizer as world_tokenizer
from recipes.tiny.prompts import body, chat

CHARACTERS = st.characters(exclude_categories=("Cs",))


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    world_tokenizer.save(folder)
    return AutoTokenizer.from_pretrained(folder)


def prompt_of(sample):
    return body(sample.question, sample.passages)


@pytest.mark.parametrize("name", NAMES)
def test_world_text_comes_back_as_it_was(name, auto):
    for sample in samples(name, "test", 50):
        for text in (prompt_of(sample), sample.answers[0]):
            assert auto.decode(auto(text)["input_ids"]) == text


def test_names_are_one_token_at_the_start_of_a_line_and_inside_it(auto):
    for name in (*names()["given"], *names()["surname"], *names()["common_surname"], *names()["town"]):
        assert len(auto(name)["input_ids"]) == 1
        assert auto(f"in {name}")["input_ids"][1:] == auto(name)["input_ids"]
        assert auto(f"a\n{name}")["input_ids"][2:] == auto(name)["input_ids"]


def test_an_answer_has_the_same_tokens_alone_and_after_its_prompt(auto):
    for sample in samples("long", "test", 20):
        prompt, answer = chat(prompt_of(sample)), sample.answers[0]
        assert auto(prompt + answer)["input_ids"] == auto(prompt)["input_ids"] + auto(answer)["input_ids"]


def test_the_chat_template_is_the_one_that_was_trained_on(auto):
    for sample in samples("fresh", "test", 5):
        message = [{"role": "user", "content": prompt_of(sample)}]
        text = auto.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        assert text == chat(prompt_of(sample))
    said = [*message, {"role": "assistant", "content": "Yes"}]
    assert auto.apply_chat_template(said, tokenize=False).endswith("<|assistant|>\nYes<|eos|>")


def test_special_tokens_are_set(auto):
    assert (auto.bos_token, auto.eos_token, auto.pad_token, auto.mask_token) == (
        "<|bos|>",
        "<|eos|>",
        "<|eos|>",
        "<|mask|>",
    )
    assert len(auto) <= 4096


@settings(deadline=None)
@given(st.text(CHARACTERS, min_size=1).filter(lambda text: text[0] != " "))
def test_any_text_comes_back_as_it_was(text):
    tokenizer = world_tokenizer.shared()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", ["last", "first", "both"])
def test_the_toolkits_prompt_has_the_tokens_that_were_trained_on(name, order, auto):
    for n in (0, 5):
        for sample in samples(name, "test", 10, passages=n):
            trained = chat(body(sample.question, sample.passages, order))
            built = prompt.build(auto, sample.question, sample.passages, order=order)
            assert built.text == trained
            assert built.ids == world_tokenizer.shared().encode(trained).ids
