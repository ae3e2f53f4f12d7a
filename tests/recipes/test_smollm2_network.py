"""The network that trains the SmolLM2 adapters computes what transformers and peft compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recipes.smollm2.network import RANK, SCALE, LowRank, Network, attention, positions_of

LENGTHS = [5, 9]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def network_of(model: LlamaForCausalLM) -> Network:
    return Network(model, mask_id=96, compile=False)


def logits_of(network: Network, rows: list[list[int]], *, causal: bool) -> torch.Tensor:
    """Logits of rows of different lengths that lie one after another."""

    def attend(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = zip(q.split(LENGTHS), k.split(LENGTHS), v.split(LENGTHS), strict=True)
        masks = [torch.ones(n, n, dtype=torch.bool).tril() if causal else None for n in LENGTHS]
        return torch.cat([attention(*part, mask) for part, mask in zip(parts, masks, strict=True)])

    ids_N = torch.tensor([i for row in rows for i in row])
    return network.logits(network.layers(network.embed(ids_N), positions_of(LENGTHS), attend))


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_rows_without_padding_give_the_logits_of_transformers(model: LlamaForCausalLM, causal: bool) -> None:
    rows = [torch.randint(0, 97, (n,)).tolist() for n in LENGTHS]
    network = network_of(model)
    expected = torch.cat([model(torch.tensor([row]), is_causal=causal).logits[0] for row in rows])
    torch.testing.assert_close(logits_of(network, rows, causal=causal), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_saved_adapter_means_the_same_to_peft(model: LlamaForCausalLM, tmp_path: Path) -> None:
    from peft import PeftModel

    rows = [torch.randint(0, 97, (n,)).tolist() for n in LENGTHS]
    network = network_of(model)
    for layer in network.b:
        for factor in layer.values():
            factor.normal_(std=0.05)
    network.save(tmp_path)
    again = network_of(model)
    again.load(tmp_path)
    loaded = PeftModel.from_pretrained(model, tmp_path)
    expected = torch.cat([loaded(torch.tensor([row])).logits[0] for row in rows])
    loaded.unload()
    torch.testing.assert_close(logits_of(again, rows, causal=True), expected, atol=1e-4, rtol=1e-4)
    assert (logits_of(network_of(model), rows, causal=True) - expected).abs().max() > 0.01


def test_the_gradients_of_the_factors_are_those_of_the_sum() -> None:
    torch.manual_seed(0)
    sizes = [6, 4]
    x, base = torch.randn(7, 12, requires_grad=True), torch.randn(10, 12)
    a, b = torch.randn(2 * RANK, 12, requires_grad=True), torch.randn(10, RANK, requires_grad=True)

    def merged() -> torch.Tensor:
        parts = zip(base.split(sizes), a.split(RANK), b.split(sizes), strict=True)
        return torch.cat([w + SCALE * high @ low for w, low, high in parts])

    weights = torch.randn(7, 10)
    expected = torch.autograd.grad(((x @ merged().T) * weights).sum(), (x, a, b))
    found = torch.autograd.grad((LowRank.apply(x, merged().detach(), a, b, sizes) * weights).sum(), (x, a, b))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
