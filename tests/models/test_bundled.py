"""The bundled models are whole, small, load by name, and answer as their cards say."""

import json
import shutil

import pytest
import torch

import floatlens
from floatlens.errors import FloatLensError
from floatlens.models import bundled
from recipes.tiny import card


@pytest.fixture(params=bundled.BUNDLED)
def name(request):
    torch.set_num_threads(1)
    return request.param


def test_weights_answer_the_fixed_sample_exactly_as_the_card_says(name):
    folder = bundled.path(name)
    expected = json.loads((folder / "scores.json").read_text())["sample"]["right"]
    assert card.sample_right(floatlens.load(name)) == expected
    assert f"{expected} of the fixed 100" in (folder / "README.md").read_text()


def test_all_models_together_are_at_most_24_megabytes():
    assert sum(f.stat().st_size for f in bundled.MODELS.rglob("*") if f.is_file()) <= 24e6


def test_a_card_says_how_the_model_was_made_and_shows_its_curves(name):
    text = (bundled.path(name) / "README.md").read_text()
    for heading in ("## Data", "## Recipe", "## Scores", "## Limits"):
        assert heading in text
    assert "curves.svg" in text and (bundled.path(name) / "curves.svg").stat().st_size < 200_000


@pytest.fixture
def copied(tmp_path, monkeypatch):
    shutil.copytree(bundled.MODELS, tmp_path / "models")
    monkeypatch.setattr(bundled, "MODELS", tmp_path / "models")
    bundled.path.cache_clear()
    yield tmp_path / "models"
    bundled.path.cache_clear()


def test_missing_weights_give_a_clear_error(copied):
    (copied / "tiny-mdm" / "model.safetensors").unlink()
    with pytest.raises(FloatLensError, match=r"^model.safetensors of tiny-mdm is missing .* install floatlens again$"):
        bundled.path("tiny-mdm")
    assert bundled.path("tiny-arm").is_dir()


def test_corrupted_weights_give_a_clear_error(copied):
    file = copied / "tiny-dream" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(FloatLensError, match=r"^model.safetensors of tiny-dream is not the file that was released"):
        bundled.path("tiny-dream")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(FloatLensError, match="choose one of tiny-arm, tiny-mdm, tiny-dream"):
        bundled.path("tiny-gpt")
