"""Anything that cannot be observed or changed is an error, never an empty result."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import floatlens
from floatlens import FloatLensError
from floatlens.models import describe
from tests.models import checkpoints

IDS = list(range(3, 15))


def small(config: transformers.PreTrainedConfig, folder: Path) -> str:
    """A saved tiny model, by its masked or causal head."""
    masked = config.model_type in ("fnet", "big_bird", "nystromformer", "longformer")
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def unlisted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> floatlens.Lens:
    """A model whose attention cannot be seen, and which the list of those has forgotten."""
    monkeypatch.delitem(describe.REASONS, "fnet")
    return floatlens.load(small(transformers.FNetConfig(**checkpoints.ABSOLUTE, mask_token_id=60), tmp_path))


def test_a_model_whose_attention_is_not_seen_gives_no_trace(unlisted: floatlens.Lens) -> None:
    assert unlisted.generate([IDS], max_new_tokens=2)[0].steps >= 1
    with pytest.raises(
        FloatLensError, match="no attention was observed in layer 0 of FNetForMaskedLM.*3 layers in all"
    ):
        unlisted.trace(IDS, max_new_tokens=2)


def test_an_intervention_that_is_never_asked_is_an_error(unlisted: floatlens.Lens) -> None:
    said = r"mask-positions\(positions=0\) changed nothing in layer 0 of FNetForMaskedLM"
    with unlisted.intervene("mask-positions(0)"), pytest.raises(FloatLensError, match=said):
        unlisted.generate([IDS], max_new_tokens=2)


def test_an_intervention_on_layers_without_attention_is_an_error(tmp_path: Path) -> None:
    """A hybrid: an intervention on its convolutions would do nothing, one on all layers acts where there is attention."""
    config = transformers.Lfm2Config(**checkpoints.SIZES, layer_types=["conv", "full_attention", "conv"])
    lens = floatlens.load(small(config, tmp_path))
    said = (
        r"mask-positions\(positions=0, layers=\[0, 2\]\) would change nothing: none of the layers 0, 2 .* choose from 1"
    )
    with lens.intervene("mask-positions(0, layers=[0, 2])"), pytest.raises(FloatLensError, match=said):
        lens.generate([IDS], max_new_tokens=2)
    with lens.intervene("mask-positions(0)"):
        assert lens.generate([IDS], max_new_tokens=2)[0].steps >= 1


def test_an_intervention_without_a_target_at_any_step_is_no_error(tmp_path: Path) -> None:
    """Nothing stands 99 standard deviations above the rest; the intervention looked at every step and found none."""
    lens = floatlens.load(str(checkpoints.native(tmp_path, "llama")))
    plain = lens.generate([IDS], max_new_tokens=3)[0].ids
    with lens.intervene("mask-anchors(sigma(99))"):
        assert lens.generate([IDS], max_new_tokens=3)[0].ids == plain


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.FNetConfig(**checkpoints.ABSOLUTE), "Fourier transforms"),
        (transformers.LongformerConfig(**checkpoints.ABSOLUTE, attention_window=4), "overlapping chunks"),
        (transformers.BigBirdConfig(**checkpoints.ABSOLUTE), "set attention_type to 'original_full'"),
        (transformers.NystromformerConfig(**checkpoints.ABSOLUTE, num_landmarks=8), "they are 8 landmarks"),
        (transformers.FalconMambaConfig(**{**checkpoints.ABSOLUTE, "num_hidden_layers": 1}), "state space model"),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else "",
)
def test_a_model_that_cannot_be_observed_is_refused_when_it_is_loaded(
    tmp_path: Path, config: transformers.PreTrainedConfig, reason: str
) -> None:
    folder = small(config, tmp_path)
    with pytest.raises(FloatLensError, match=f"is a {config.model_type} model, which cannot be traced.*{reason}"):
        floatlens.load(folder)


def test_an_encoder_is_not_traced_as_a_causal_model(tmp_path: Path) -> None:
    with pytest.raises(FloatLensError, match="attends in both directions; use the family 'masked'"):
        floatlens.load(str(checkpoints.native(tmp_path, "bert")), family="causal")


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
    assert "an encoder type of transformers, and is_decoder is not set" in lens.checkpoint.family_reason


def test_an_encoder_type_that_says_that_it_is_a_decoder_is_causal(tmp_path: Path) -> None:
    from floatlens.models.family import family_of

    assert family_of({"model_type": "bert", "is_decoder": True, "architectures": ["BertLMHeadModel"]}).name == "causal"
    assert family_of({"model_type": "gpt2", "architectures": ["Unheard"]}).name == "causal"
