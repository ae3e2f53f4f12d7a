"""The effects of the plan are those that a planted table has."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from recipes.results.switch import PRIMARY, WORDS, bare_texts, effects, fill_table, judge, verdicts


def table(folder: Path, name: str, first: float, floating: dict[str, float], back: float, other: float) -> None:
    rows = []
    for n in range(40):
        for condition in ("as is", "out"):
            rows.append({"condition": condition, "first_share": first, "floating": floating[condition]})
        rows += [{"condition": f"back at {w}", "follows": back} for w in WORDS]
        rows += [{"condition": f"other 5 at {w}", "follows": other} for w in WORDS]
        for row in rows[-2 - 2 * len(WORDS) :]:
            row["text"] = str(n)
    pd.DataFrame(rows).to_parquet(folder / f"{name}-0.parquet")


def test_effects_are_those_of_a_planted_table(tmp_path: Path) -> None:
    table(tmp_path, "open-masked", 0.01, {"as is": 0.1, "out": 0.6}, back=1.0, other=0.25)
    table(tmp_path, "causal-masked", 0.3, {"as is": 0.0, "out": 0.0}, back=0.0, other=0.0)
    table(tmp_path, "causal-next", 0.5, {"as is": 0.05, "out": 0.15}, back=0.0, other=0.0)
    found = {name: values.mean() for name, (values, _) in effects(tmp_path, 0).items()}
    assert found == pytest.approx({"moves": 0.05, "keeps": 0.29, "type": 0.75, "absent": 0.4})
    assert {name: row["verdict"] for name, row in verdicts(tmp_path, 0).items()} == {
        "moves": "fails",
        "keeps": "holds",
        "type": "holds",
        "absent": "holds",
    }


def test_a_claim_is_judged_only_when_its_tables_are_there(tmp_path: Path) -> None:
    assert verdicts(tmp_path, 0) == {}
    table(tmp_path, "open-masked", 0.01, {"as is": 0.1, "out": 0.6}, back=1.0, other=0.25)
    assert list(verdicts(tmp_path, 0)) == ["type"]
    facts = {"token": ",", "texts": 4, "of": 20}
    (tmp_path / "open-masked-0.json").write_text(json.dumps(facts))
    assert verdicts(tmp_path, 0)["type"]["verdict"].startswith("not testable here: the most frequent sink is ','")


def test_after_an_undecided_primary_claim_none_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(0, 1, 40)
    noise = (
        (noise - noise.mean()) / noise.std(ddof=1) * 0.01 * np.sqrt(40)
    )  # the mean of 40 has a standard error of 0.01

    def planted(clear: tuple[float, float, float]) -> dict[str, tuple[np.ndarray, float]]:
        values = {name: (0.1 + z * 0.01 + noise, 0.1) for name, z in zip(PRIMARY, clear, strict=True)}
        return values | {"moves": (0.1 + 2.2 * 0.01 + noise, 0.1)}

    for clear, expected in (
        ((9, 9, 9), ["holds", "holds", "holds"]),
        ((9, 2.4, 2.0), ["holds", "holds", "holds"]),  # 5 %/2 one-sided asks for about 2 standard errors, 5 % for 1.7
        ((1.8, 1.8, 1.8), ["inconclusive"] * 3),  # each alone would hold at 5 %
        ((-9, 9, 1.5), ["fails", "holds", "inconclusive"]),
    ):
        monkeypatch.setattr("recipes.results.switch.effects", lambda *_, c=clear: planted(c))
        found = verdicts(tmp_path, 0)
        assert [found[name]["verdict"] for name in PRIMARY] == expected, clear


def test_an_effect_holds_only_above_its_smallest_size() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.3, 0.05, 40)
    assert [judge(values, smallest, 0.95)[2] for smallest in (0.1, 0.3, 0.5)] == ["holds", "inconclusive", "fails"]
    assert judge(values[:19], 0.1, 0.95)[2].startswith("not testable here")


class Words:
    """A tokenizer whose ids are places in a list of strings."""

    strings = (",", ";", ".", "\n", " one", " two", " 3", " four", " five", " six", " seven")

    def decode(self, ids: list[int]) -> str:
        return "".join(self.strings[i] for i in ids)

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [self.strings.index(text)]}


def test_bare_text_has_no_token_without_a_letter_or_a_digit_but_the_one_put_back_after_word_5() -> None:
    ids = [4, 0, 5, 1, 6, 2, 7, 3, 8, 0, 9, 2, 10, 0]
    found = bare_texts(Words(), ids, candidate=0)
    assert [(text.condition, text.ids, text.inserted) for text in found] == [
        ("bare", [4, 5, 6, 7, 8, 9, 10], -1),
        ("bare candidate", [4, 5, 6, 7, 8, 0, 9, 10], 5),
        ("bare semicolon", [4, 5, 6, 7, 8, 1, 9, 10], 5),
    ]


def test_an_interrupted_table_is_filled_with_the_missing_texts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.results.switch.spaced_texts", lambda *_: iter([[1], [2]]))
    table = tmp_path / "bare-x.parquet"
    pd.DataFrame([{"text": "6-0", "value": 7}]).to_parquet(table)
    lens = SimpleNamespace(tokenizer=None)
    fill_table(table, lens, [[]] * 8, lambda ids: [{"value": ids[0]}])  # type: ignore[arg-type]
    assert pd.read_parquet(table).to_dict("list") == {"text": ["6-0", "6-1", "7-0", "7-1"], "value": [7, 2, 1, 2]}
