"""Token kinds for the spellings of different tokenizers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatlens.data.token_kinds import GROUPS, classify, groups_of, spelled, text_of
from floatlens.errors import FloatLensError

SENTENCE = ["name", "name", "name", "function", "content", "function", "number", "punctuation"]


@pytest.mark.parametrize(
    "tokens",
    [
        ["ĠAda", "ĠLov", "elace", "Ġwas", "Ġborn", "Ġin", "Ġ1815", "."],
        ["▁Ada", "▁Lov", "elace", "▁was", "▁born", "▁in", "▁1815", "."],
        ["Ada", "Lov", "##elace", "was", "born", "in", "1815", "."],
        [" Ada", " Lov", "elace", " was", " born", " in", " 1815", "."],
    ],
    ids=["byte-level BPE", "SentencePiece", "WordPiece", "plain text"],
)
def test_one_sentence_in_four_spellings(tokens):
    assert classify(tokens) == SENTENCE
    assert text_of(tokens).strip() == "Ada Lovelace was born in 1815."


def test_function_words_inside_longer_words_are_not_function_words():
    assert classify(["Ġma", "the", "matics", "Ġis", "Ġthe"]) == [
        "content",
        "content",
        "content",
        "function",
        "function",
    ]


@pytest.mark.parametrize("token", ["<|mask|>", "[MASK]", "<mask>", "<|mdm_mask|>"])
def test_masks(token):
    assert classify([token]) == ["mask"]


@pytest.mark.parametrize(
    "token", ["<|endoftext|>", "<s>", "</s>", "[CLS]", "[SEP]", "<pad>", "<|eot_id|>", "<start_of_turn>", "<｜User｜>"]
)
def test_special_tokens(token):
    assert classify(["a", token]) == ["function", "special"]


@pytest.mark.parametrize("token", ["Ċ", "ĊĊ", "\n", "<0x0A>", "ĠĠ", "ĉ"])
def test_line_ends_and_white_space(token):
    assert classify([token, "▁x" if token.startswith("<") else "Ġx"])[0] == "newline"


@pytest.mark.parametrize("token", [".", ",", "Ġ(", '."', "?", "—", "▁«", "…", ".Ċ", "ĠâĢĶ", "。"])
def test_punctuation_in_any_script(token):
    tokens = [token, "▁x" if "▁" in token else "Ġx"] if token != "。" else [token]
    assert classify(tokens)[0] == "punctuation"


def test_numbers_and_names_and_other_scripts():
    assert classify([" the", " 3", ".", "14"]) == ["function", "number", "punctuation", "number"]
    assert classify([" in", " Paris"]) == ["function", "name"]
    assert classify([" город", " 東京", " ٣٤"]) == ["content", "content", "number"]
    assert classify([" в", " Москве"]) == ["content", "name"]


def test_a_sentence_starts_with_a_capital_whatever_the_word():
    assert classify([".", " Rivers", " flow", "."])[1] == "content"
    assert classify([".", " Ada", " Lovelace", " wrote"])[1:3] == ["name", "name"]


def test_a_character_cut_in_two_is_read_whole():
    pieces = ["ĠÃī", "mile"]  # " É" + "mile"
    assert classify(["Ġby", *pieces]) == ["function", "name", "name"]
    cut = ["Ġæ", "Ŀ", "±"]  # one character, 東, in three tokens
    assert classify(["Ġby", *cut]) == ["function", "content", "content", "content"]
    assert text_of(cut) == " 東"


def test_template_positions_are_structure_whatever_they_say():
    tokens = ["[", "1", "]", " one", " river", "\n", "<|user|>"]
    kinds = classify(tokens, [True] * 7)
    assert kinds == ["template", "template", "template", "template", "template", "newline", "special"]


def test_every_kind_belongs_to_a_group_and_others_are_refused():
    assert set(groups_of(list(GROUPS))) == {"structural", "lexical"}
    with pytest.raises(FloatLensError, match="unknown token kind 'verb'"):
        groups_of(["verb"])


@given(st.lists(st.text(max_size=6), max_size=20))
def test_any_strings_get_one_kind_each(tokens):
    kinds = classify(tokens)
    assert len(kinds) == len(tokens)
    assert all(kind in GROUPS or (kind == "" and token == "") for kind, token in zip(kinds, tokens, strict=True))


def test_the_text_of_tokens_has_a_space_where_a_word_starts():
    assert text_of(["ĠAda", "ĠLov", "elace"]) == text_of(["▁Ada", "▁Lov", "elace"]) == " Ada Lovelace"
    assert text_of(["ada", "love", "##lace"]) == " ada lovelace"
    assert spelled(["ĠAda", "ĠLov", "elace", "Ċ"]) == [" Ada", " Lov", "elace", "\n"]
    assert spelled(["ada", "love", "##lace"]) == [" ada", " love", "lace"]
