"""The estimate of a run's cost agrees with hand computations and with what torch counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import floatlens
from floatlens.attention.session import Session
from floatlens.attention.tile import TILE
from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find
from floatlens.store.plan import (
    ModelSize,
    Workload,
    cost,
    estimate,
    measure_model,
    memory,
    observation_memory,
    parse_devices,
)
from tests.commands import run

# LLaDA-8B: 32 layers, 32 heads of 128, 8 billion parameters in bfloat16.
LLADA = ModelSize("llada", False, 8 * 10**9, 7 * 10**9, 5 * 10**8, 32, 32, 32, 128, 4096, 126464, 2)


def test_observing_a_long_sequence_is_planned_without_its_attention_matrix() -> None:
    """4,096 positions: queries and keys in float32 (two extra columns), a float32 copy of the queries, two blocks."""
    T, H, D = 4096, 32, 128
    by_hand = 2 * H * T * (D + 2) * 4 + H * T * D * 4 + 2 * TILE * 4  # 196 MiB
    statistics = 32 * T * (4 * H + H) * 4 + H * T * 16 * 4  # of all 32 layers, and sums over 16 regions: 88 MiB
    assert observation_memory(LLADA, T, 1) == by_hand + statistics
    matrix = H * T * T * 4
    assert observation_memory(LLADA, T, 1) < matrix / 4
    assert observation_memory(LLADA, 2 * T, 1) == pytest.approx(2 * observation_memory(LLADA, T, 1), rel=0.01)


def peak_memory(layers: int, heads: int, kv_heads: int, length: int, dim: int, batch: int) -> int:
    """Most bytes that torch holds while a session observes a forward pass, beside the model's own tensors."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, count, length, dim) for count in (heads, kv_heads, kv_heads))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        session = Session()
        for layer in range(layers):
            session.see(layer, q, k, v, scaling=None, mask=None, causal=False)
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


def test_the_planned_batch_fills_the_device() -> None:
    """An A100 has 72 GB to use; 16 GB are weights, and the largest power of two that fits the rest is taken."""
    count, device = parse_devices("1xA100")
    work = Workload(samples=640, prompt=2016, new=32, steps=32)
    found = estimate(LLADA, work, device, count)
    assert memory(LLADA, work, found.batch) <= 72e9 < memory(LLADA, work, 2 * found.batch) or found.batch == 64
    assert found.batch >= 32


@pytest.mark.parametrize("name", ["tiny-mdm", "tiny-arm"])
def test_the_operations_counted_are_those_that_torch_counts(name: str) -> None:
    lens = floatlens.load(name)
    prompt = lens.prompt("Where does Ada live?", ["Ada lives in Molen.", "Ben lives in Rusk."])
    work = Workload(samples=1, prompt=len(prompt.ids), new=8, steps=8, trace=False)
    ours = cost(measure_model(find(name), "float32"), work).forward
    lens.__dict__["end_ids"] = ()  # nothing ends an answer early
    # The counter does not know the CPU's attention kernel; it knows the products that the plain one is made of.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        list(lens.steps(lens._batch([prompt]), lens.settings(max_new_tokens=8)))
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_twice_the_work_takes_twice_as_long_and_twice_the_gpus_half() -> None:
    model = measure_model(find("tiny-mdm"), "bfloat16")
    count, device = parse_devices("2xA100")
    work = Workload(samples=6400, prompt=400, new=32, steps=32)
    one = estimate(model, work, device, count, batch=16)
    more = estimate(model, Workload(12800, 400, 32, 32), device, count, batch=16)
    fewer = estimate(model, work, device, 1, batch=16)
    assert more.hours == pytest.approx(2 * one.hours) and fewer.hours == pytest.approx(2 * one.hours)
    assert more.storage == 2 * one.storage and 0 < one.observation_share < 1


def test_a_model_too_large_for_one_gpu_is_spread_and_for_all_is_refused(tmp_path: Path) -> None:
    small = measure_model(find("tiny-mdm"), "bfloat16")
    work = Workload(samples=10, prompt=400, new=32, steps=32)
    _, device = parse_devices("A100")
    large = replace(small, parameters=70 * 10**9)
    assert estimate(large, work, device, 8).devices_per_worker == 2
    with pytest.raises(FloatLensError, match="use more or larger --gpus"):
        estimate(large, work, device, 1)


def test_the_plan_states_every_assumption(data: Path, model: Path) -> None:
    shown = run("plan", model, "--data", data, "--gpus", "8xA100").stdout
    assert "14 of" in shown and "312 TFLOP/s" in shown and "40%" in shown and "storage" in shown
    found = json.loads(
        run("plan", "tiny-mdm", "--samples", 9, "--prompt-tokens", 99, "--gpus", "H100", "--json").stdout
    )
    assert found["samples"] == 9 and found["prompt_tokens"] == 99 and len(found["assumptions"]) == 7
    for words in (("--gpus", "8xABACUS"), ("--gpus", "0xA100"), ("--gpus", "A100", "--samples", 0)):
        run("plan", "tiny-mdm", "--prompt-tokens", 9, *words, code=2)


def test_a_config_without_a_tokenizer_is_planned_by_the_length_of_its_prompts(
    data: Path, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    words = ("plan", tmp_path, "--data", data, "--gpus", "A100")
    said = run(*words, code=2).stderr
    assert "has no tokenizer files" in said and "--prompt-tokens" in said and "from_ids" not in said
    found = json.loads(run(*words, "--prompt-tokens", 40, "--json").stdout)
    assert found["samples"] == 14 and found["prompt_tokens"] == 40
