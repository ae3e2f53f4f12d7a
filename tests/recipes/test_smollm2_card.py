"""The card of an adapter states what was measured and what was not."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from floatlens.models import bundled
from recipes.smollm2 import card, release

CURVE = """tokens,step,answers,text,norm,nq_loss,nq_half,atlas_loss,atlas_half,seconds
1000,10,9.5,8.5,3.0,,,,,60
2000,20,7.25,6.5,2.0,6.1,0.16,4.4,0.29,120
3000,30,5.5,,1.0,5.1,0.2,3.4,0.31,180
4000,40,,,,5.0,0.21,3.3,0.32,240
"""


def asked(name: str = "smollm2-mdm", **given: object) -> Namespace:
    return Namespace(**{"name": name, "curve": None, "scores": None, "sinks": None, "dtype": "bfloat16", **given})


@pytest.mark.parametrize("name", ["smollm2-arm", "smollm2-canvas", "smollm2-mdm"])
def test_a_card_has_its_parts_and_says_what_is_missing(name: str) -> None:
    text = card.write(asked(name))
    for heading in ("## Data", "## Recipe", "## Scores", "## What became of the sink", "## Limits"):
        assert heading in text
    assert text.count("Not yet measured.") == 2 and "No curve was recorded." in text
    assert ("mask token" in text) == (name != "smollm2-arm")


def test_the_curve_is_a_table_of_its_validations(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(CURVE)
    text = card.write(asked(curve=path))
    assert "4,000 tokens in 40 steps, 4 minutes" in text
    assert "| 3,000 | 5.5 | – | 5.1 | 0.2 | 3.4 | 0.31 |" in text and "| 1,000 |" not in text


def test_scores_come_from_the_command_or_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(
        json.dumps(
            {
                "results": [
                    {
                        "model": "smollm2-mdm",
                        "data": "atlas",
                        "condition": "closed-book",
                        "n": 50,
                        "em": 0.1,
                        "accuracy": 0.125,
                        "f1": 0.2,
                    }
                ]
            }
        )
    )
    (tmp_path / "nq.txt").write_text(
        "1 1  who | 'x' | ['x']\nplain nq with passages: n 100, em 0.000, accuracy 0.310, f1 0.205, 9 s\n"
    )
    text = card.write(asked(scores=[tmp_path / "results.json", tmp_path / "nq.txt"]))
    assert "| **smollm2-mdm** | atlas | none | 50 | 12.5 | 10.0 | 20.0 |" in text
    assert "| smollm2 | nq | yes | 100 | 31.0 | 0.0 | 20.5 |" in text


def test_the_sink_is_told_beside_that_of_the_unchanged_model(tmp_path: Path) -> None:
    about = {"questions": 12, "new_tokens": 16, "tokens": [".", "<|im_start|>"]}
    for name, first in (("smollm2", [0.05, 0.8]), ("smollm2-mdm", [0.01, 0.02])):
        found = {**about, "model": name, "shares": {"first": first, "top(n=1)": [0.25, 0.5]}}
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    text = card.write(asked(sinks=tmp_path))
    assert (
        "The sink at position 0 is gone. Position 0 receives at least 0.3 of the attention in 1 of 2 layers of" in text
    )
    assert "it receives 0.80 on average there and 0.02 here. Another position takes its place" in text
    assert (
        "at least 0.3 of the attention in 1 of 2 layers, and 0.50 in layer 1, where it is most often the token" in text
    )
    assert "| 0 | 0.05 | 0.01 | 0.25 | `.` |" in text


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([0.1, 0.77], "is still at position 0, about as strong as in SmolLM2."),
        ([0.1, 0.4], "is still at position 0, but weaker."),
        ([0.1, 0.29], "at position 0 is gone."),
    ],
)
def test_a_card_says_whether_the_sink_stayed(after: list[float], said: str) -> None:
    text = card.sink_sentences([0.1, 0.8], after, [0.1, 0.29], ["a", "b"])
    assert text.startswith(f"The sink {said} ") and "takes its place" not in text
    assert f"it receives 0.80 on average there and {after[1]:.2f} here." in text


def test_a_released_adapter_is_rounded_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, trained = tmp_path / "models", tmp_path / "trained"
    models.mkdir()
    trained.mkdir()
    monkeypatch.setattr(bundled, "MODELS", models)
    monkeypatch.setattr(bundled, "SUMS", models / "sha256.json")
    bundled.path.cache_clear()
    weight = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    save_file({"a.lora_A.weight": weight.half()}, trained / "adapter_model.safetensors")
    save_file({"mask": torch.ones(4)}, trained / "mask.safetensors")
    (trained / "adapter_config.json").write_text("{}")
    (tmp_path / "README.md").write_text("a card")
    folder = release.release("smollm2-mdm", trained, tmp_path / "README.md")
    rounded = load_file(folder / "adapter_model.safetensors")["a.lora_A.weight"]
    assert not (rounded.view(torch.int16) & 0b111).any()
    torch.testing.assert_close(rounded.float(), weight, rtol=1 / 256 + 1 / 2048, atol=0.0)
    assert bundled.path("smollm2-mdm") == folder
    bundled.path.cache_clear()
