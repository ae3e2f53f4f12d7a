"""The network of tiny-ssm: the form that is trained computes what transformers' mixers compute."""

from __future__ import annotations

import pytest
import torch

from recipes.tiny import ssm, ssm_kernel
from recipes.tiny.model import start
from recipes.tiny.train import CONSTANT, State, progress_of


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
    torch.testing.assert_close(ssm.hidden(model, ids), model.backbone(ids)[0], atol=1e-5, rtol=1e-4)
    real = torch.ones(2, 40, dtype=torch.long)
    real[0, :7] = 0
    found, native = ssm.hidden(model, ids, real), model.backbone(ids, attention_mask=real)[0]
    torch.testing.assert_close(found[0, 7:], native[0, 7:], atol=1e-5, rtol=1e-4)


def test_it_is_as_large_as_tiny_mdm_within_a_tenth(model: ssm.BiMamba2ForMaskedLM) -> None:
    other = sum(weight.numel() for weight in start(0).parameters())
    assert abs(sum(weight.numel() for weight in model.parameters()) / other - 1) < 0.1


def test_a_stop_file_starts_the_cool_down_and_nothing_else_does() -> None:
    def done(step: int, cooling: int) -> float:
        return progress_of(State("ssm", 0, step=step, cooling=cooling), steps=1000, minutes=None, cool=200)

    assert done(300, -1) == 0.3 and done(5000, -1) == CONSTANT  # constant rate for as long as it takes
    assert done(5000, 5000) == CONSTANT and done(5200, 5000) == 1.0


@pytest.mark.skipif(not ssm_kernel.available(), reason="there is no C compiler")
def test_the_kernel_has_the_gradient_of_the_torch_form(
    model: ssm.BiMamba2ForMaskedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixer = model.backbone.layers[0].mixer.mamba_fwd
    u = torch.randn(2, 40, 128, generator=torch.Generator().manual_seed(3), requires_grad=True)

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(ssm.mixed(mixer, u).square().sum(), [u, *mixer.parameters()])

    fast = gradients()
    monkeypatch.setattr(ssm_kernel, "available", lambda: False)
    for one, other in zip(fast, gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
