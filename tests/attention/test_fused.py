"""Attention that is computed once: its output is SDPA's up to rounding, and its weights give the exact statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

import floatlens as fl
from floatlens.attention import hook, session
from floatlens.attention.call import Inputs
from floatlens.attention.hook import observing
from floatlens.attention.session import Session
from floatlens.attention.statistic import DEFAULT
from floatlens.attention.stream import LARGEST, LOG2E
from tests.attention.test_stream_equals_exact import (
    MAKERS,
    close,
    compare,
    layout,
    make_pads,
    make_tensors,
    prompts,
    see,
    situations,
)

NAMES = [*DEFAULT]


def expected(s: dict[str, Any], tensors: dict[str, torch.Tensor], layer: int, seen_BQT: torch.Tensor) -> torch.Tensor:
    """The output (B, Q, H, D) by the definition."""
    queries, length = seen_BQT.shape[1:]
    groups = s["heads"] // s["kv_heads"]
    q = tensors["q"][layer, :, :, length - queries : length]
    k, v = (tensors[name][layer, :, :, :length].repeat_interleave(groups, 1) for name in "kv")
    scores = (q @ k.transpose(2, 3) * 0.4).masked_fill(~seen_BQT[:, None], -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


# Few queries, some of them padding that may see keys: they have an output, which counts nowhere.
PADDED = {"rows": 1, "kv_heads": 1, "heads": 1, "length": 3, "causal": False, "window": None, "padded": True}
PADDED |= {"additive": False, "tile": 1, "seed": 1, "cached": 0, "layers": 1, "room": 0}


@settings(max_examples=120, deadline=None)
@example(PADDED)
@given(situations())
def test_output_and_statistics_of_one_pass_are_the_exact_ones(s: dict[str, Any]) -> None:
    s = s | {"softcap": None, "sinks": False}  # left to the second pass
    generator = torch.Generator().manual_seed(s["seed"])
    total = s["length"] + s["cached"]
    pads = make_pads(s, generator)
    tensors = make_tensors(s, total, generator)
    place = layout(s["rows"], total, pads, generator)
    fused = Session(NAMES, layout=place, tile=s["tile"], room=s["room"], implementation="fused")
    exact = Session(NAMES, layout=place, implementation="exact")
    for length in range(s["length"], total + 1):
        queries = length if length == s["length"] else 1
        see(exact, s, tensors, length, queries, pads)
        for layer, (output, seen) in enumerate(see(fused, s, tensors, length, queries, pads, compute=True)):
            assert output is not None
            wanted = expected(s, tensors, layer, seen)
            real = seen.any(-1)
            assert bool(output.isfinite().all())  # a row of padding is 0 or a mean of values, never NaN
            torch.testing.assert_close(output[real], wanted[real], atol=1e-5, rtol=0)
        compare(fused, exact, s["layers"], queries, pads)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1.0, 9.0])  # with and without the maxima of the rows
def test_long_rows_and_large_scores_give_the_output_and_the_entropy_of_the_definition(
    size: float, causal: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 300, 4, 16, generator=generator).transpose(1, 2) for _ in "qkv")
    q = q * size
    score = q.double() @ k.double().transpose(2, 3) / 4
    score = score.masked_fill(~torch.ones(300, 300).tril().bool(), -torch.inf) if causal else score
    weights = score.softmax(-1)
    observed = Session(["received", "entropy"], implementation="fused")
    output = observed.see(0, Inputs(q, k, v, None, None, causal), compute=True)
    assert output is not None
    log2_sums = (score * LOG2E).amax(-1)  # of a row's weights, less than ten too low
    assert bool((log2_sums.abs() > math.log2(LARGEST)).any()) == (size > 1)
    torch.testing.assert_close(output.double(), (weights @ v.double()).transpose(1, 2), atol=2e-5, rtol=0)
    torch.testing.assert_close(observed.results["received"][0].double(), weights.mean(2), atol=1e-6, rtol=0)
    entropy = -torch.xlogy(weights, weights).sum(-1).mean(-1)
    torch.testing.assert_close(observed.results["entropy"][0].double(), entropy, atol=1e-5, rtol=0)


@pytest.fixture(scope="module", params=[*MAKERS])
def lens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> fl.Lens:
    folder = tmp_path_factory.mktemp("model") / request.param
    return fl.load(str(MAKERS[request.param](folder)), dtype="float32")


def test_a_default_trace_of_every_architecture_equals_the_exact_one(lens: fl.Lens) -> None:
    fused = lens.traces(prompts(), max_new_tokens=4)
    exact = lens.traces(prompts(), max_new_tokens=4, implementation="exact")
    for a, b in zip(fused, exact, strict=True):
        assert set(a.data.data_vars) == set(b.data.data_vars)
        for name in a.data.data_vars:
            if a.data[name].dtype.kind == "f":
                close(torch.tensor(a.data[name].values), torch.tensor(b.data[name].values), str(name))
            else:
                np.testing.assert_array_equal(a.data[name], b.data[name])


def count_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often attention was computed in each way from now on."""
    calls = {"sdpa": 0, "fused": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += kwargs.get("output", True)
            return function(*args, **kwargs)

        return call

    sdpa = hook.ALL_ATTENTION_FUNCTIONS["sdpa"]
    monkeypatch.setitem(hook.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", counted("sdpa", sdpa))
    monkeypatch.setattr(session, "weigh", counted("fused", session.weigh))
    return calls


def test_attention_is_computed_once_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fl.load("tiny-mdm")
    layers = lens.shape["layers"]
    calls = count_calls(monkeypatch)
    lens.trace("Where was Ada Lovelace born?", max_new_tokens=4, steps=2)
    assert calls == {"sdpa": 0, "fused": 2 * layers}
    lens.trace("Where was Ada Lovelace born?", max_new_tokens=4, steps=2, implementation="stream")
    assert calls == {"sdpa": 2 * layers, "fused": 2 * layers}


def test_what_cannot_be_computed_once_is_observed_by_a_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fl.load("tiny-mdm", dtype="bfloat16")
    calls = count_calls(monkeypatch)
    lens.trace("Where was Ada Lovelace born?", max_new_tokens=2, steps=1)
    assert calls["fused"] == 0 and calls["sdpa"] > 0


def test_gradients_pass_through_the_models_own_attention() -> None:
    lens = fl.load("tiny-mdm")
    ids = torch.tensor([[5, 6, 7, 8]])
    weight = next(lens.model.parameters()).requires_grad_()
    try:
        with observing(lens.model, Session(["received"])):
            lens.model(ids).logits.sum().backward()
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0)
    finally:
        weight.requires_grad_(False)
        weight.grad = None


PASSAGES = ["Ada Tarn lives in Molen.", "Molen lies on the river Aste."]


@pytest.mark.parametrize("name", ["tiny-mdm", "tiny-dream", "tiny-arm"])
def test_bundled_models_write_the_same_tokens_with_logits_within_2e_5(name: str) -> None:
    lens = fl.load(name)
    asked = {"max_new_tokens": 16}
    prompt = lens.prompt("On which river does the town of Ada Tarn lie?", PASSAGES)
    traced, plain = lens.trace(prompt, **asked), lens.generate([prompt], **asked)[0]
    new = traced.final_tokens[len(prompt.ids) :].tolist()
    assert new[: len(plain.ids)] == plain.ids
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        wanted = lens.model(ids).logits
        with observing(lens.model, Session(["received", "entropy"])):
            found = lens.model(ids).logits
    assert not found.equal(wanted)  # else the model's own attention was called
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)


def test_the_kernel_is_refused_where_it_cannot_run() -> None:
    lens = fl.load("tiny-mdm")
    with pytest.raises(fl.FloatLensError, match="implementation 'kernel' needs Triton and an NVIDIA GPU"):
        lens.trace("Who?", max_new_tokens=2, steps=1, implementation="kernel")
