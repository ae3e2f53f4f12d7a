"""The sink: a planted position, a planted token type and no sink are told apart, and their shares are the planted ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatlens as fl
from floatlens.findings.sink import FIND, WORDS, choose_controls, conditions, same_type, spell, texts_of, word_start
from floatlens.findings.window import LENGTH, PROMPT, WRITTEN, attend, attend_last, read_text
from floatlens.store.runs import SWITCH, model_runs
from floatlens.studies.report import switch_traces
from floatlens.studies.sentences import say_aloud
from floatlens.studies.study import Study
from floatlens.studies.texts import token_texts
from tests import small_tokenizers
from tests.findings import planted_models

STRINGS = ["A", " b", ",", ',"', " and", ";", " c", "d"]


class Words:
    """A tokenizer that knows eight tokens."""

    def __len__(self) -> int:
        return len(STRINGS)

    def decode(self, ids: list[int]) -> str:
        return "".join(STRINGS[i] for i in ids)


def test_a_punctuation_mark_is_a_type_with_what_is_glued_to_it_and_a_word_is_not() -> None:
    assert same_type(Words(), 2) == {2, 3} and same_type(Words(), 4) == {4}


def test_words_begin_at_spaces() -> None:
    assert [word_start(Words(), [0, 7, 2, 1, 6, 7], w) for w in range(3)] == [0, 3, 4]


def test_the_type_is_out_or_at_one_known_position() -> None:
    ids = [0, 2, 1, 3, 6] + [1, 6] * 100
    texts = {text.condition: text for text in conditions(Words(), ids, 2, [5], {2, 3})}
    assert texts["as is"].ids[:5] == [0, 2, 1, 3, 6] and not {2, 3} & set(texts["out"].ids)
    assert len({len(text.ids) for text in texts.values()}) == 1
    for w in WORDS:
        for name, token in (("back", 2), ("other 5", 5)):
            text = texts[f"{name} at {w}"]
            assert text.ids[text.inserted] == token and text.ids.count(token) == 1


def test_a_space_before_a_token_is_kept_whatever_the_tokenizer() -> None:
    for make in (small_tokenizers.byte_level, small_tokenizers.metaspace, small_tokenizers.word_piece):
        tokenizer = make()
        ids = tokenizer("Answer the question", add_special_tokens=False)["input_ids"]
        spelled = "".join(spell(tokenizer, i) for i in ids)
        assert spelled.strip().lower().split() in (["answer", "the", "question"], ["answerthequestion"]), make


def test_controls_are_other_tokens_of_similar_frequency() -> None:
    tokenizer = planted_models.tokenizer()
    comma, semicolon, word = (tokenizer.convert_tokens_to_ids(t) for t in (",", ";", "▁kaba"))
    found = choose_controls(tokenizer, Counter({word: 9, comma: 8, 12: 7, 13: 1}), comma, {comma})
    assert found == [12, semicolon, tokenizer.convert_tokens_to_ids("▁and")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty texts to continue."""
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"continue": text, "id": str(n)} for n, text in enumerate(planted_models.texts(20))]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Study:
    home = tmp_path_factory.mktemp("planted")
    plants: dict[str, dict[str, Any]] = {"position": {"position": 0}, "type": {"token": ","}, "none": {"bias": 0.0}}
    models = [planted_models.save(planted_models.planted("mdm", **how), home / name) for name, how in plants.items()]
    models.append(planted_models.save(planted_models.planted("arm", position=0), home / "arm"))
    return fl.study(list(map(str, models)), only=["sink"], texts=str(data), out=home / "study")


def verdicts(studied: Study) -> dict[tuple[str, str], dict[str, Any]]:
    return {(claim["id"], Path(claim["models"][0]).name): claim for claim in studied.claims}


def test_a_position_and_a_type_are_told_apart(studied: Study) -> None:
    found = verdicts(studied)
    assert not studied.failed
    assert found["sink.first", "position"]["value"] == pytest.approx(
        planted_models.share(6.0, LENGTH) - 1 / LENGTH, abs=1e-4
    )
    assert found["sink.first", "position"]["interval"][0] > 0.1 > found["sink.first", "type"]["interval"][1]
    assert found["sink.type", "type"]["value"] == 1 and "','" in found["sink.type", "type"]["reason"]
    assert found["sink.type", "position"]["value"] == 0
    assert found["sink.first", "none"]["interval"][1] < 0.1
    assert found["sink.type", "none"]["reason"].startswith("no token type is the sink")


def test_a_planted_sink_stands_still_and_the_statistics_of_the_prediction_are_stated(
    studied: Study,
) -> None:
    found = verdicts(studied)
    for claim in ("sink.absent", "sink.back"):
        assert found[claim, "type"]["statistic"].startswith("floating (window, deep layers)")
        assert len(found[claim, "type"]["interval"]) == 2
    said = " ".join(say_aloud(studied.claims))
    assert (
        "type's sink is a token type: it follows ',' to 100\N{NO-BREAK SPACE}% of the places where one is put." in said
    )
    numbers = fl.findings.sink.measure([run.path for run in model_runs(studied.path)])
    first = numbers.isel(sample=[Path(m).name == "position" for m in numbers["model"].values])
    assert np.allclose(first["deep_floating"], 0, atol=1e-6) and np.allclose(first["deep_floating_out"], 0, atol=1e-6)


def test_the_study_films_one_text_without_and_with_the_token(studied: Study) -> None:
    homes = {Path(run.manifest["asked"]["model"]).name: run.path for run in model_runs(studied.path)}
    assert not (homes["none"] / SWITCH).exists() and not (homes["arm"] / SWITCH).exists()
    [without, with_], token = switch_traces([homes["type"]])
    assert token == "," and "," not in without.texts() and with_.texts().count(",") == 1
    received_SLT = with_.head_mean("received").values
    assert (received_SLT.argmax(axis=-1) == with_.texts().index(",")).all(), "it stands still at the token"
    assert '"without"' in studied.report.read_text() and "without and with" in studied.report.read_text()


def test_the_shares_of_an_autoregressive_model_are_those_of_its_causal_rows(
    studied: Study,
) -> None:
    rows = range(PROMPT, PROMPT + WRITTEN)
    planted = np.mean([planted_models.share(6.0, row + 1) - 1 / (row + 1) for row in rows])
    assert verdicts(studied)["sink.first", "arm"]["value"] == pytest.approx(planted, abs=1e-4)


def test_the_table_has_every_condition_of_every_text_and_resumes(
    studied: Study,
    data: Path,
) -> None:
    table = texts_of([run.path for run in model_runs(studied.path)])
    counts = table[table["model"] == table["model"].iloc[0]]["condition"].value_counts()
    assert counts[FIND] == 8 and counts["out"] == 12 == counts["back at 30"]
    for status in studied.path.glob("models/*/parts.json"):
        status.unlink()  # as in a run that was killed before it ended
    again = fl.study(list(dict.fromkeys(table["model"])), only=["sink"], texts=str(data), out=studied.path, resume=True)
    assert {c["id"]: c["value"] for c in again.claims} == {c["id"]: c["value"] for c in studied.claims}


def test_the_surprise_is_that_of_the_model(tmp_path: Path) -> None:
    """An independent forward pass on the first window gives the same nats."""
    import torch

    lens = fl.load(str(planted_models.save(planted_models.planted("mdm", token=","), tmp_path / "model")))
    assert lens.tokenizer is not None
    ids = lens.tokenizer(planted_models.texts(1)[0], add_special_tokens=False)["input_ids"][:LENGTH]
    found = read_text(lens, ids)
    masked = torch.tensor([[*ids[:PROMPT], *[lens.mask_id] * (LENGTH - PROMPT)]])
    with torch.no_grad():
        logits = lens.model(masked).logits[0, PROMPT : PROMPT + 8].log_softmax(-1)
    np.testing.assert_allclose(
        found["nats"][:8], [-float(row[i]) for row, i in zip(logits, ids[PROMPT:], strict=False)], rtol=1e-4
    )


@pytest.mark.parametrize("model", ["tiny-mdm", "tiny-ssm", "tiny-arm"])
def test_the_attention_after_the_last_window_needs_no_windows(model: str) -> None:
    lens = fl.load(model)
    assert lens.tokenizer is not None
    passages = [p.text for sample in fl.read("world:common", limit=8, passages=3) for p in sample.passages]
    ids = lens.tokenizer(" ".join(passages), add_special_tokens=False)["input_ids"][:LENGTH]
    _, matrices, _ = attend(lens, ids)
    np.testing.assert_allclose(attend_last(lens, ids), matrices[-1], atol=1e-6)


def test_questions_are_refused_as_texts(tmp_path: Path) -> None:
    found = fl.study(["tiny-mdm"], only=["sink"], texts="world:fresh", limit=4, out=tmp_path / "run")
    assert "has questions, not texts" in str(found.failed)


def test_a_short_text_is_continued_by_those_after_it_and_the_last_by_the_first() -> None:
    def tokenizer(text: str, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text if letter != "\n"]}

    found = token_texts(tokenizer, {"1": "abcdef", "2": "gh", "3": "ij"}, length=4)
    assert {id_: "".join(map(chr, ids)) for id_, ids in found.items()} == {"1": "abcd", "2": "ghij", "3": "ijab"}
    with pytest.raises(fl.FloatLensError, match="have 10 tokens together"):
        token_texts(tokenizer, {"1": "abcdef", "2": "gh", "3": "ij"}, length=11)
