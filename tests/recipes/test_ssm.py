"""The network of tiny-ssm: the form that is trained computes what transformers' mixers compute."""

from __future__ import annotations

import pytest
import torch

from recipes.tiny import ssm
from recipes.tiny.model import start


@pytest.fixture(scope="module")
def model() -> ssm.BiMamba2ForMaskedLM:
    made = ssm.start(0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return made


@pytest.mark.parametrize("length", [5, 32, 75])
@torch.no_grad()
def test_the_trained_form_computes_what_the_native_mixer_computes(model: ssm.BiMamba2ForMaskedLM, length: int) -> None:
    mixer = model.backbone.layers[1].mixer.mamba_rev
    u = torch.randn(2, length, 128, generator=torch.Generator().manual_seed(length))
    torch.testing.assert_close(ssm.mixed(mixer, u), mixer(u), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_whole_network_agrees_with_the_one_that_is_loaded(model: ssm.BiMamba2ForMaskedLM) -> None:
    ids = torch.randint(0, 2000, (2, 40), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(ssm.hidden(model, ids), model.backbone(ids)[-1], atol=1e-5, rtol=1e-4)


def test_it_is_as_large_as_tiny_mdm_within_a_tenth(model: ssm.BiMamba2ForMaskedLM) -> None:
    other = sum(weight.numel() for weight in start(0).parameters())
    assert abs(sum(weight.numel() for weight in model.parameters()) / other - 1) < 0.1
