"""The bundled models are complete and small, load by name, and have the scores on their cards."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import floatlens
from floatlens.errors import FloatLensError
from floatlens.models import bundled
from recipes.tiny import card, ssm


@pytest.fixture(params=bundled.BUNDLED)
def name(request):
    torch.set_num_threads(1)
    return request.param


def test_weights_answer_the_fixed_sample_exactly_as_the_card_says(name):
    folder = bundled.path(name)
    expected = json.loads((folder / "scores.json").read_text())["sample"]["right"]
    lens = floatlens.load(name)
    if (
        name == "tiny-ssm"
    ):  # the form of the scan that is trained; tests/recipes/test_ssm.py compares it with the mixers
        ssm.run_fast(lens.model)
    assert card.sample_right(lens) == expected
    assert f"{expected} of the fixed 100" in (folder / "README.md").read_text()


def size(name):
    return sum(file.stat().st_size for file in (bundled.MODELS / name).rglob("*") if file.is_file())


def test_all_models_together_are_at_most_12_megabytes_and_each_adapter_at_most_10():
    """The wheel should stay below 40 MB with three adapters."""
    assert sum(size(name) for name in bundled.BUNDLED) <= 12e6
    assert all(size(name) <= 10e6 for name in bundled.ADAPTERS)


@pytest.mark.parametrize("name", bundled.ADAPTERS)
def test_a_bundled_adapter_is_the_one_that_was_released_and_has_a_card(name):
    folder = bundled.path(name)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(json.loads(bundled.SUMS.read_text())[name])
    assert (folder / "mask.safetensors").is_file() or name == "smollm2-arm"
    text = (folder / "README.md").read_text()
    for heading in ("## Data", "## Recipe", "## Scores", "## What became of the sink", "## Limits"):
        assert heading in text


def test_weights_are_stored_in_float16(name):
    weights = load_file(bundled.path(name) / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert json.loads((bundled.path(name) / "config.json").read_text())["torch_dtype"] == "float16"
    assert next(floatlens.load(name).model.parameters()).dtype == torch.float32  # on a CPU
    assert 1.3e6 < sum(tensor.numel() for tensor in weights.values()) < 1.43e6  # within a tenth of each other


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
    with pytest.raises(FloatLensError, match=r"^model.safetensors of tiny-mdm is missing .* reinstall floatlens$"):
        bundled.path("tiny-mdm")
    assert bundled.path("tiny-arm").is_dir()


def test_corrupted_weights_give_a_clear_error(copied):
    file = copied / "tiny-dream" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(FloatLensError, match=r"^model.safetensors of tiny-dream does not match its published checksum"):
        bundled.path("tiny-dream")
