"""Logits, hidden states, queries and keys of the published block-causal models, from the native classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from floatlens.attention.hook import observing
from floatlens.attention.session import Session
from floatlens.decode.network import ForwardPass, Passes, visible
from floatlens.decode.step import SpecialTokens
from tests import golden_blocks

pytestmark = pytest.mark.golden
MODELS = golden_blocks.block_models("forward")
CASES = [(name, case) for name in MODELS for case in golden_blocks.cases(name)]


def positions_of(case: dict[str, Any]) -> torch.Tensor:
    length = len(case["input_ids"])
    return torch.tensor(case.get("position_ids", np.arange(length)), dtype=torch.long)[None]


def rows_of(case: dict[str, Any]) -> np.ndarray:
    """The rows to compare: those that are not padding."""
    return case.get("valid", np.ones(len(case["input_ids"]))).astype(bool)


def blocks_of(case: dict[str, Any]) -> torch.Tensor:
    """The block of each position by its column; -1 for padding."""
    blocks = np.arange(len(case["input_ids"])) // int(case["block_length"])
    return torch.tensor(np.where(rows_of(case), blocks, -1))[None]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_mask_is_the_published_one(name: str, number: int) -> None:
    case, rows = golden_blocks.case(name, number), rows_of(golden_blocks.case(name, number))
    np.testing.assert_array_equal(visible(blocks_of(case))[0][rows], case["attention_mask"][rows].astype(bool))


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_pass_gives_the_published_numbers(name: str, number: int) -> None:
    case, rows = golden_blocks.case(name, number), rows_of(golden_blocks.case(name, number))
    model, session = golden_blocks.lens(name).model, Session(["queries", "keys"])
    mask = visible(blocks_of(case))[:, None]
    ids = torch.tensor(case["input_ids"], dtype=torch.long)[None]
    options = {"attention_mask": mask, "position_ids": positions_of(case)}
    with torch.no_grad():
        plain = model(ids, **options, output_hidden_states=True, use_cache=False)
        with observing(model, session):
            model(ids, **options, use_cache=False)
    np.testing.assert_allclose(plain.logits[0].numpy()[rows], case["logits"][rows], atol=3e-5, rtol=0)
    hidden = torch.cat(plain.hidden_states).numpy()[:, rows]
    np.testing.assert_allclose(hidden, case["hidden_states"][:, rows], atol=3e-5, rtol=0)
    for name, expected in (("queries", case["query_states"]), ("keys", case["key_states"])):
        found = np.stack([session.results[name][layer][0].numpy() for layer in sorted(session.results[name])])
        np.testing.assert_allclose(found[:, :, rows], expected[:, :, rows], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in MODELS if "cached_prefix_ids" in golden_blocks.forward(name)])
def test_a_block_on_a_cached_prefix_gives_the_published_logits(name: str) -> None:
    from transformers import DynamicCache

    arrays, lens = golden_blocks.forward(name), golden_blocks.lens(name)
    prefix, block = arrays["cached_prefix_ids"], arrays.get("cached_block_ids")
    size = int(arrays["cached_block_length"])
    if block is None:
        block = np.full(size, golden_blocks.special(name)["mask_token_id"])
    ids = torch.tensor(np.concatenate([prefix, block]), dtype=torch.long)[None]
    first, length = len(prefix), ids.shape[1]
    valid = np.ones(length, bool)
    positions = np.arange(length)
    if "cached_prefix_positions" in arrays:
        positions = np.concatenate([arrays["cached_prefix_positions"], arrays["cached_block_positions"]])
        valid[:first] = prefix != golden_blocks.special(name)["pad_token_id"]
    blocks = torch.tensor(np.where(valid, np.arange(length) // size, -1))[None]
    position_ids, cache = torch.tensor(positions, dtype=torch.long)[None], DynamicCache()
    passes = Passes(lens.model, lens.family, ids, None, lens.settings(), special=SpecialTokens())
    prefill = ForwardPass(ids[:, :first], 0, range(0), range(first))
    mask = visible(blocks[:, :first])
    passes.run(prefill, mask, keep=1, position_ids_BQ=position_ids[:, :first], cache=cache)
    forward = ForwardPass(ids, first, range(first, length), range(0))
    options: dict[str, Any] = {"position_ids_BQ": position_ids[:, first:], "cache": cache, "store": False}
    logits = passes.run(forward, visible(blocks, first), keep=size, **options)
    np.testing.assert_allclose(logits[0].numpy(), arrays["cached_block_logits"], atol=3e-5, rtol=0)


@pytest.mark.parametrize("name", [n for n in MODELS if "case0_router_topk" in golden_blocks.forward(n)])
def test_the_router_chooses_the_published_experts(name: str) -> None:
    model, found = golden_blocks.lens(name).model, []
    for number in golden_blocks.cases(name):
        case = golden_blocks.case(name, number)
        found.clear()
        hooks = [
            layer.mlp.gate.register_forward_hook(lambda _, __, output: found.append(output))
            for layer in model.model.layers
            if hasattr(layer.mlp, "gate")
        ]
        try:
            with torch.no_grad():
                ids = torch.tensor(case["input_ids"], dtype=torch.long)[None]
                model(ids, attention_mask=visible(blocks_of(case))[:, None], use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        assert len(found) == len(case["router_logits"])
        for (logits, _, chosen), expected, experts in zip(
            found, case["router_logits"], case["router_topk"], strict=True
        ):
            np.testing.assert_allclose(logits.reshape(expected.shape).float().numpy(), expected, atol=3e-5, rtol=0)
            np.testing.assert_array_equal(chosen.sort(-1).values.reshape(experts.shape).numpy(), experts)
