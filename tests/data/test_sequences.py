"""Raw sequences: no question and no chat template, regions by spans or by marks."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import floatlens as fl
from floatlens.data.prompt import Region
from floatlens.data.sequences import check_spans, read_marks, text_prompt
from floatlens.evaluation.sources import build_prompt
from floatlens.options import Sampling
from tests.models import checkpoints
from tests.small_tokenizers import byte_level, word_piece


def test_a_raw_text_has_the_tokens_that_the_tokenizer_gives() -> None:
    tokenizer = byte_level()
    text = "Ada Tarn lives in Molen."
    prompt = text_prompt(tokenizer, text)
    assert prompt.ids == tokenizer(text)["input_ids"] and prompt.text == text and not prompt.chat
    assert tokenizer.decode(prompt.ids[prompt.region("text").start :]) == text


def test_spans_and_marks_give_the_same_regions() -> None:
    tokenizer = byte_level()
    marked = text_prompt(tokenizer, "[[doc1: Ada Tarn lives in Molen.]] [[query: Where does Ada live?]]", "marks")
    text = "Ada Tarn lives in Molen. Where does Ada live?"
    assert marked == text_prompt(tokenizer, text, {"doc1": (0, 24), "query": (25, 45)})
    spans = {region.name: tokenizer.decode(marked.ids[region.start : region.end]) for region in marked.regions}
    assert spans["doc1"] == "Ada Tarn lives in Molen." and spans["query"].strip() == "Where does Ada live?"


def test_a_mark_may_hold_a_mask_in_brackets() -> None:
    assert read_marks("[[site: AC [MASK]]] G")[0] == "AC [MASK] G"


@pytest.mark.parametrize(
    ("regions", "said"),
    [
        ({"a": (0, 3), "b": (2, 5)}, "region 'b' has the span 2:5 in characters, which overlaps another"),
        ({"a": (3, 99)}, "region 'a' has the span 3:99 in characters, which should lie in 0:5"),
        ("marks", "the text has no marks; write a region as"),
    ],
)
def test_regions_that_cannot_be_are_refused(regions: object, said: str) -> None:
    with pytest.raises(fl.FloatLensError, match=said):
        text_prompt(byte_level(), "Molen", regions)  # type: ignore[arg-type]
    with pytest.raises(fl.FloatLensError, match="in positions, which should lie in 0:2"):
        check_spans({"a": (0, 3)}, 2, "positions")


def test_a_text_of_unknown_tokens_warns() -> None:
    tokenizer = word_piece()
    with pytest.warns(UserWarning, match=r"100% of the tokens of 'ЖЖ ЖЖ' are unknown"):
        text_prompt(tokenizer, "ЖЖ ЖЖ")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text_prompt(tokenizer, "Ada Tarn lives in Molen.")


def test_regions_of_a_replayed_answer_take_the_place_of_the_answer(tmp_path: Path) -> None:
    folder = checkpoints.llada(tmp_path, vocab=600)
    byte_level().save_pretrained(folder)
    lens = fl.load(str(folder))
    prompt = lens.text_prompt("[[doc: Ada lives in Molen.]] Where? [[doc: Ben bakes.]]", "marks")
    trace = lens.replay(prompt, "[[reason: Ada lives there,]] so [[result: Molen]]", regions="marks")
    assert {region.name for region in trace.regions} == {"doc", "reason", "result"}
    flow = trace.data["flow"].isel(step=0, layer=0)
    assert flow["region"].values.tolist() == ["other", "doc", "reason", "result"]
    # two spans of one name are one region: its received attention is the sum over both
    attention = lens.replay(prompt, "Molen", matrices=["attention_mean"]).data.isel(step=0, layer=0)
    doc = [region for region in prompt.regions if region.name == "doc"]
    weights = attention["attention_mean"].values
    rows = [j for region in doc for j in range(region.start, region.end)]
    expected = weights[rows][:, rows].sum(1).mean()
    assert float(attention["flow"].sel(region="doc", region_to="doc")) == pytest.approx(expected, rel=1e-4)


def test_a_mask_in_a_text_to_continue_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    folder = checkpoints.llada(tmp_path, vocab=len(tokenizer) + 8)
    checkpoints.edit_config(
        folder, mask_token_id=tokenizer.mask_token_id or tokenizer.convert_tokens_to_ids("<|mask|>")
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(fl.FloatLensError, match="the text contains a mask, .* use infill"):
        fl.load(str(folder)).text_prompt("Ada <|mask|> Tarn")


def test_a_file_of_plain_texts_is_continued_without_a_template(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"continue": "Toyoba Tunanulf, a poet, had"}\n{"continue": "Ada", "answers": ["Tarn"]}\n')
    samples = list(fl.read(path))
    assert [s.continuation for s in samples] == [True, True] and [s.answers for s in samples] == [[], ["Tarn"]]
    lens = fl.load("tiny-mdm")
    for sample in samples:
        assert build_prompt(lens, sample, Sampling(max_new_tokens=4)).ids == lens.text_prompt(sample.question).ids
    with pytest.raises(fl.FloatLensError, match="shorten the text"):
        build_prompt(lens, samples[0], Sampling(max_new_tokens=10**6))


def test_regions_of_token_ids_are_spans_of_positions():
    spans = check_spans({"b": (2, 3), "a": (0, 2)}, 3, "positions")
    assert spans == [Region("a", 0, 2), Region("b", 2, 3)]
