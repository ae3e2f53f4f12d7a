"""Attention of the published block-causal models at every denoising step, reproduced by a trace."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from floatlens.attention.hook import observing
from floatlens.attention.session import Session
from floatlens.decode.network import visible
from tests import golden_blocks

pytestmark = pytest.mark.golden
DENOISE = 1  # the kind of a step that is not SDAR's storing pass


def settings_of(name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    numbers = [int(value) for value in arrays["settings"]]
    if "settings_json" in arrays:
        found = json.loads(str(arrays["settings_json"]))
        found["max_new_tokens"] = found.pop("gen_length")
        if "steps" in found:
            found["steps_per_block"] = found.pop("steps")
        return found
    found = {"max_new_tokens": numbers[0], "block_length": numbers[1]}
    if name.startswith("sdar"):
        threshold = float(arrays["confidence_threshold"]) if "confidence_threshold" in arrays else None
        strategy = "low_confidence_static" if threshold is None else "low_confidence_dynamic"
        return found | {
            "steps_per_block": numbers[2],
            "remasking_strategy": strategy,
            "confidence_threshold": threshold,
        }
    return found | {"steps": numbers[2]}


@pytest.fixture(scope="module", params=golden_blocks.block_models("attention"))
def case(request: pytest.FixtureRequest) -> tuple[Any, dict[str, np.ndarray], Any, int]:
    """The lens, the golden arrays, the trace, and the published padding before the prompt."""
    name = request.param
    arrays = golden_blocks.arrays(f"attention/{name}.npz")
    settings, special = settings_of(name, arrays), golden_blocks.special(name)
    ends = {
        "sdar": (),
        "sdar_moe": (),
        "llada2": (settings.pop("eos_id", None),),
        "a2d_qwen3": (special["eos_token_id"],),
    }
    lens = golden_blocks.lens_with_ids(name, ends[golden_blocks.kind(name) or ""])
    prompt = special["prompts"][int(arrays["prompt_index"])]
    pad = int(arrays["padded_prompt_length"]) - len(prompt) if "padded_prompt_length" in arrays else 0
    trace = lens.trace(prompt, matrices=["attention"], sampler=settings)
    return lens, arrays, trace, pad


def denoising(arrays: dict[str, np.ndarray]) -> list[int]:
    return [index for index, (*_, kind) in enumerate(arrays["step_range"]) if kind == DENOISE]


def test_each_step_sees_the_published_sequence(case: Any) -> None:
    lens, arrays, trace, pad = case
    assert trace.data.sizes["step"] == len(denoising(arrays))
    for step, index in enumerate(denoising(arrays)):
        tokens = trace.data["tokens"].sel(step=step).values
        seen = np.where(tokens < 0, lens.mask_id, tokens)
        np.testing.assert_array_equal(seen, arrays["step_input_ids"][index][pad : pad + len(seen)])
    np.testing.assert_array_equal(trace.final_tokens, arrays["final_ids"][pad : pad + len(trace.final_tokens)])


def test_the_attention_of_the_block_at_each_step(case: Any) -> None:
    _, arrays, trace, pad = case
    for step, index in enumerate(denoising(arrays)):
        start, end, _ = arrays["step_range"][index]
        expected_LHBT = arrays["step_attention"][index][:, :, : end - start, pad:end]
        found = trace.data["attention"].sel(step=step).values[:, :, start - pad : end - pad, : end - pad]
        np.testing.assert_allclose(found, expected_LHBT, atol=1e-5)
        received = trace.data["received"].sel(step=step).values
        np.testing.assert_allclose(received[..., : end - pad], expected_LHBT.mean(2), atol=1e-5)
        assert np.isnan(received[..., end - pad :]).all()


def test_final_rows_are_those_of_finished_blocks(case: Any) -> None:
    """The pass over the finished sequence has them all: a row never sees a later block."""
    _, arrays, trace, pad = case
    for step, index in enumerate(denoising(arrays)):
        first = int(arrays["step_range"][index][0])
        final = trace.data["received_final"].sel(step=step).values if "received_final" in trace.data else None
        if first <= pad:
            assert final is None or np.isnan(final).all()
            continue
        assert final is not None
        expected = arrays["attention_heads"][:, :, pad:first, pad:first].mean(2)
        np.testing.assert_allclose(final[..., : first - pad], expected, atol=1e-5)


def test_queries_keys_and_heads_of_the_finished_sequence(case: Any) -> None:
    lens, arrays, trace, pad = case
    length, block = len(arrays["final_ids"]), trace.settings["block_length"]
    blocks = torch.arange(length) // block
    blocks[:pad] = -1
    positions = torch.tensor(arrays.get("position_ids", np.arange(length)), dtype=torch.long)[None]
    session = Session(["attention", "queries", "keys"])
    with torch.no_grad(), observing(lens.model, session):
        ids = torch.tensor(arrays["final_ids"], dtype=torch.long)[None]
        lens.model(ids, attention_mask=visible(blocks[None])[:, None], position_ids=positions, use_cache=False)
    found = {name: np.stack([layers[n][0].numpy() for n in sorted(layers)]) for name, layers in session.results.items()}
    for name, expected in (("queries", "query_states"), ("keys", "key_states"), ("attention", "attention_heads")):
        # transformers sums over the experts of Qwen3-MoE in another order, which the states of later layers show.
        atol = 3e-5 if lens.model.config.model_type == "qwen3_moe" and name != "attention" else 1e-5
        np.testing.assert_allclose(found[name][:, :, pad:], arrays[expected][:, :, pad:], atol=atol, err_msg=name)
