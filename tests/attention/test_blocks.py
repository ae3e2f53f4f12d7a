"""Block-causal attention with a cache: a block that is denoised again replaces its rows, a finished one adds to the rest.

The family and its sampler are one file, `block_causal.py`; the expected numbers are means over rows of the matrices that
transformers' eager attention gives for the whole sequence of each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import floatlens as fl
from floatlens.decode.sampler import SAMPLERS
from floatlens.models.family import FAMILIES
from tests.attention import block_causal
from tests.models import checkpoints
from tests.registries import restored

BLOCK, NEW, PROMPT = 4, 10, list(range(3, 16))  # 13 prompt tokens: one of them lies in the first block that is written
MATRICES = ["attention", "queries", "keys"]


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fl.Lens]:
    folder = checkpoints.native(tmp_path_factory.mktemp("block"), "qwen3")
    checkpoints.edit_config(folder, model_type="toy_block", mask_token_id=checkpoints.MASK, architectures=["ToyBlock"])
    with restored(FAMILIES), restored(SAMPLERS):
        fl.register_sampler("toy-block")(block_causal.ToyBlocks)
        fl.register_family(block_causal.FAMILY)
        made = fl.load(str(folder), dtype="float32")
        assert made.family.name == "toy-block"
        yield made


def trace_of(lens: fl.Lens, cache: bool = True, **options: Any) -> fl.Trace:
    return lens.trace(PROMPT, max_new_tokens=NEW, block_length=BLOCK, sampler={"cache": cache}, **options)


def weights_of(lens: fl.Lens, trace: fl.Trace, step: int) -> np.ndarray:
    """Attention (layer, head, query, key) of the whole sequence that a step saw, by transformers' eager code."""
    tokens = trace.data["tokens"].sel(step=step).values
    ids = torch.tensor(tokens[tokens >= 0])[None]
    seen = block_causal.visible(0, ids.shape[1], BLOCK)[:, None]
    lens.model.set_attn_implementation("eager")
    try:
        mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)
        with torch.no_grad():
            found = lens.model(ids, attention_mask=mask, output_attentions=True).attentions
    finally:
        lens.model.set_attn_implementation("sdpa")
    return torch.stack(found)[:, 0].numpy()


def first_of_block(position: int) -> int:
    return position // BLOCK * BLOCK


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("implementation", ["stream", "exact"])
def test_a_step_averages_the_rows_of_its_block_and_final_rows_are_kept_beside_it(
    lens: fl.Lens, cache: bool, implementation: str
) -> None:
    trace = trace_of(lens, cache, implementation=implementation)
    committed = trace.data["committed_at"].values
    for step in range(NEW):
        weights_LHQT = weights_of(lens, trace, step)
        length = weights_LHQT.shape[-1]
        first = first_of_block(int(np.flatnonzero(committed == step)[0]))
        received = trace.data["received"].sel(step=step).values
        np.testing.assert_allclose(received[..., :length], weights_LHQT[:, :, first:].mean(2), atol=2e-6)
        assert np.isnan(received[..., length:]).all()
        final = trace.data["received_final"].sel(step=step).values
        np.testing.assert_allclose(final[..., :first], weights_LHQT[:, :, :first, :first].mean(2), atol=2e-6)
        assert np.isnan(final[..., first:]).all()
        entropy = -(weights_LHQT * np.log(np.maximum(weights_LHQT, 1e-30))).sum(-1)
        np.testing.assert_allclose(trace.data["entropy"].sel(step=step), entropy[:, :, first:].mean(2), atol=1e-5)


def test_a_cache_changes_no_token_and_no_number(lens: fl.Lens) -> None:
    cached, whole = (trace_of(lens, cache, matrices=MATRICES) for cache in (True, False))
    assert set(cached.data.data_vars) == set(whole.data.data_vars)
    for name in cached.data.data_vars:
        np.testing.assert_allclose(cached.data[name], whole.data[name], atol=1e-5, rtol=1e-4, err_msg=str(name))


def test_every_statistic_equals_its_exact_definition(lens: fl.Lens) -> None:
    stream, exact = (trace_of(lens, matrices=MATRICES, implementation=way) for way in ("stream", "exact"))
    for name in stream.data.data_vars:
        np.testing.assert_allclose(stream.data[name], exact.data[name], atol=1e-5, rtol=1e-4, err_msg=str(name))


def test_a_step_that_is_not_kept_still_counts_among_the_final_rows(lens: fl.Lens) -> None:
    whole, last = trace_of(lens), trace_of(lens, record_steps=[NEW - 1])
    for name in ("received", "received_final"):
        np.testing.assert_array_equal(last.data[name].sel(step=NEW - 1), whole.data[name].sel(step=NEW - 1))


def test_tracing_changes_no_token(lens: fl.Lens) -> None:
    plain = lens.generate([PROMPT], max_new_tokens=NEW, block_length=BLOCK)[0]
    assert trace_of(lens).final_tokens[len(PROMPT) :].tolist()[: len(plain.ids)] == plain.ids


def test_what_is_masked_receives_nothing_from_the_block(lens: fl.Lens) -> None:
    with lens.intervene("mask-positions(positions=[2, 14])"):
        received = trace_of(lens).data["received"].values
    written = np.isfinite(received[..., 14])
    assert written.any() and not received[..., 14][written].any() and not received[..., 2].any()


def test_the_anchors_that_are_masked_are_those_of_the_blocks_own_rows(lens: fl.Lens) -> None:
    """In the first layer, whose input no intervention has touched, at the first step, which sees the same tokens."""
    with lens.intervene("mask-anchors(top(2), layers=0)"):
        masked = trace_of(lens)
    plain = trace_of(lens).anchors("top(2)").isel(step=0, layer=0)
    nothing = (masked.data["received"].isel(step=0, layer=0) == 0).all("head")
    np.testing.assert_array_equal(np.flatnonzero(nothing), np.flatnonzero(plain))


def test_anchors_are_found_among_the_positions_that_a_block_sees(lens: fl.Lens) -> None:
    trace = trace_of(lens)
    anchors = trace.anchors("share(0.2)")
    received = trace.data["received"].mean("head").values
    np.testing.assert_array_equal(
        anchors.values, np.nan_to_num(received) > 0.2
    )  # all queries of a block see all its keys
