"""Invalid settings are errors before anything is loaded, and the error names valid ones."""

from __future__ import annotations

import pytest

from floatlens.decode.sampler import SAMPLERS, TYPES, own_settings, settings_for
from floatlens.errors import FloatLensError


@pytest.mark.parametrize(
    ("sampler", "given", "said"),
    [
        ("llada", {"max_new_tokens": 32, "block_length": 12}, "use max_new_tokens 36, or another block_length"),
        ("llada", {"max_new_tokens": 32, "block_length": 8, "steps": 6}, "use steps 8"),
        ("llada", {"max_new_tokens": 32, "block_length": 8, "steps": 3}, "use steps 4"),
        ("llada", {"max_new_tokens": 0}, "max_new_tokens should be an integer of 1 or more, not 0"),
        ("llada", {"steps": 0}, "steps should be an integer"),
        ("llada", {"remasking": "high"}, "unknown remasking 'high'; use one of low_confidence, random"),
        ("llada", {"temperature": -1.0}, "temperature should be a number of 0 or more, not -1.0"),
        ("llada", {"alg": "entropy"}, "the llada sampler has no setting 'alg'"),
        ("dream", {"alg": "best"}, "unknown alg 'best'"),
        ("dream", {"top_p": 1.5}, "top_p should be a number above 0 and at most 1, not 1.5"),
        ("dream", {"eps": 0.0}, "eps should be a number above 0 and at most 1, not 0.0"),
        ("autoregressive", {"top_k": 0}, "top_k should be an integer"),
        ("autoregressive", {"top_p": "0.9"}, "top_p should be a number above 0 and at most 1, not '0.9'"),
        ("llada", {"logits_eos_inf": 1}, "logits_eos_inf should be true or false, not 1"),
        ("llada", {"cfg_scale": -1.0}, "cfg_scale should be a number of 0 or more, not -1.0"),
        ("sdar", {"eb_threshold": 0.0}, "eb_threshold should be a number above 0, not 0.0"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(sampler: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(FloatLensError) as caught:
        settings_for(sampler, **given)
    assert said in str(caught.value)


def test_the_suggested_settings_work() -> None:
    settings_for("llada", max_new_tokens=36, block_length=12)
    for steps in (4, 8):
        settings_for("llada", max_new_tokens=32, block_length=8, steps=steps)


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    settings = settings_for("llada", max_new_tokens=32)
    settings.fits(96, 128)
    with pytest.raises(FloatLensError, match="use --max-new-tokens 28"):
        settings.fits(100, 128)
    with pytest.raises(FloatLensError, match="shorten the prompt by 3 tokens or more"):
        settings.fits(130, 128)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_setting_of_a_sampler_is_declared_with_its_type_and_help(sampler: str) -> None:
    own = own_settings(sampler)
    assert own and not {"max_new_tokens", "temperature", "seed", "steps", "block_length"} & {one.name for one in own}
    for one in own:
        assert one.metadata["help"].endswith(".") and str(one.type).removesuffix(" | None") in TYPES
        settings_for(sampler, **{one.name: one.default})
