"""The estimate of a trace's cost agrees with hand computations and with what torch counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import floatlens
from floatlens.attention.call import Inputs
from floatlens.attention.session import ROOM, Session
from floatlens.attention.stream import TILE
from floatlens.models.checkpoint import find
from floatlens.store.estimate import (
    DEVICES,
    ModelSize,
    measure_model,
    memory,
    observation_memory,
    operations,
    seconds,
)
from tests.commands import run

# LLaDA-8B: 32 layers, 32 heads of 128, 8 billion parameters in bfloat16.
LLADA = ModelSize(False, 8 * 10**9, 7 * 10**9, 5 * 10**8, 32, 32, 32, 128, 4096, 126464, 2)


def test_observing_a_long_sequence_is_planned_without_its_attention_matrix() -> None:
    """4,096 positions: queries and keys in float32, two blocks, the sums that wait, the statistics of all 32 layers."""
    T, H, D = 4096, 32, 128
    copies, statistics = 2 * H * T * D * 4, 32 * T * (4 * H + H) * 4  # 128 MiB, 80 MiB
    assert observation_memory(LLADA, T, 1) == copies + 2 * TILE * 4 + ROOM + statistics
    matrix = H * T * T * 4
    assert observation_memory(LLADA, T, 1) < matrix / 4
    assert observation_memory(LLADA, 2 * T, 1) - observation_memory(LLADA, T, 1) == copies + statistics


def peak_memory(layers: int, heads: int, kv_heads: int, length: int, dim: int, batch: int) -> int:
    """Most bytes that torch holds while a session observes a forward pass, beside the model's own tensors."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, count, length, dim) for count in (heads, kv_heads, kv_heads))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        session = Session()
        for layer in range(layers):
            session.see(layer, Inputs(q, k, v, None, None, False))
        assert len(session.results["received"]) == layers
    now = most = 0
    for event in watched.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads", "length", "batch"), [(1, 8, 8, 1024, 1), (1, 8, 2, 1024, 1), (6, 4, 4, 512, 2)]
)
def test_planned_memory_of_observation_is_what_torch_allocates(
    layers: int, heads: int, kv_heads: int, length: int, batch: int
) -> None:
    model = replace(LLADA, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=32, itemsize=4)
    measured = peak_memory(layers, heads, kv_heads, length, 32, batch)
    planned = observation_memory(model, length, batch)
    assert 0.8 < planned / measured < 2


@pytest.mark.parametrize("name", ["tiny-mdm", "tiny-arm"])
def test_the_operations_counted_are_those_that_torch_counts(name: str) -> None:
    lens = floatlens.load(name)
    prompt = lens.prompt("Where does Ada live?", ["Ada lives in Molen.", "Ben lives in Rusk."])
    ours, _ = operations(measure_model(find(name), "float32"), len(prompt.ids), 8, 8)
    lens.__dict__["end_ids"] = ()  # nothing ends an answer early
    # The counter does not know the CPU's attention kernel; it knows the products that the plain one is made of.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        list(lens.steps(lens._batch([prompt]), lens.settings(max_new_tokens=8)))
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_the_time_is_not_below_the_reading_of_the_weights() -> None:
    arm = replace(LLADA, cached=True)
    assert seconds(arm, "A100", 1, 32, 32)[0] >= 32 * 16e9 / (DEVICES["A100"][2] * 1e9)


def test_the_memory_of_a_trace_is_that_of_an_answer_and_of_observation() -> None:
    answer = memory(LLADA, 700, 32) - observation_memory(LLADA, 732)
    assert 16e9 < answer < 18e9


def test_a_model_is_described_with_the_cost_of_a_trace() -> None:
    shown = run("models", "tiny-mdm").stdout
    assert "a trace" in shown and "on one A100" in shown and "on one CPU core" in shown
    found = json.loads(run("models", "tiny-mdm", "--json").stdout)
    assert found["trace_memory_bytes"] > found["weight_bytes"] and set(found["trace_seconds"]) == set(DEVICES)
