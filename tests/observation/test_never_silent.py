"""What cannot be observed or changed is an error, never an empty result."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import floatlens
from floatlens import FloatLensError
from tests.models import checkpoints

SMALL = {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 2, "bos_token_id": 1}
IDS = list(range(3, 15))


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory) -> floatlens.Lens:
    """A model whose attention does not pass transformers' attention interface."""
    folder = tmp_path_factory.mktemp("bloom")
    transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**SMALL)).save_pretrained(folder)
    return floatlens.load(str(folder))


def test_a_model_whose_attention_is_not_seen_gives_no_trace(bloom: floatlens.Lens) -> None:
    assert bloom.generate([IDS], max_new_tokens=2)[0].steps >= 1
    with pytest.raises(FloatLensError, match="no attention was seen in layer 0 of BloomForCausalLM.*2 layers in all"):
        bloom.trace(IDS, max_new_tokens=2)


def test_an_intervention_that_is_never_asked_is_an_error(bloom: floatlens.Lens) -> None:
    said = r"mask-positions\(positions=0\) changed nothing in layer 0 of BloomForCausalLM"
    with bloom.intervene("mask-positions(0)"), pytest.raises(FloatLensError, match=said):
        bloom.generate([IDS], max_new_tokens=2)


def test_layers_that_have_no_attention_are_not_missed(tmp_path: Path) -> None:
    """A hybrid: convolutions with one attention layer among them."""
    types = ["conv", "full_attention", "conv"]
    config = transformers.Lfm2Config(**checkpoints.SIZES, layer_types=types)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    trace = floatlens.load(str(tmp_path)).trace(IDS, max_new_tokens=2)
    assert trace.data["layer"].values.tolist() == [1]


@pytest.mark.parametrize("architectures", [["MyBert"], ["BertForMaskedLM"], None])
def test_an_encoder_is_a_masked_model_whatever_its_architecture_is_called(
    tmp_path: Path, architectures: object
) -> None:
    folder = checkpoints.native(tmp_path, "bert")
    checkpoints.edit_config(folder, architectures=architectures)
    lens = floatlens.load(str(folder))
    assert (lens.family.name, lens.family.kind) == ("masked", "mdm")
    assert "model_type 'bert'" in lens.checkpoint.family_reason


def test_an_encoder_type_that_says_that_it_is_a_decoder_is_causal(tmp_path: Path) -> None:
    from floatlens.models.registry import family_of

    assert family_of({"model_type": "bert", "is_decoder": True, "architectures": ["BertLMHeadModel"]}).name == "causal"
    assert family_of({"model_type": "gpt2", "architectures": ["Unheard"]}).name == "causal"
