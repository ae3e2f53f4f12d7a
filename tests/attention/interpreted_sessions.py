"""Sessions that use the kernel give what `exact` gives. Run in Triton's interpreter: see test_kernel.py."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import Phase, given, settings

import floatlens as fl
from floatlens.attention import kernel
from floatlens.attention.call import Inputs
from floatlens.attention.session import Session
from tests.attention.interpreted_kernel import dense, inputs
from tests.attention.test_stream_equals_exact import compare, layout

STATISTICS = ["received", "entropy", "qk", "qk_norm", "qk_cos", "flow", "query_mass", "received_writing", "value_norm"]


def count_kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of each kernel call from now on."""
    calls: list[int] = []
    before = kernel.column_sums

    def counted(q: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(q.shape[2])
        return before(q, *args, **kwargs)

    monkeypatch.setattr(kernel, "column_sums", counted)
    return calls


def observe_both(
    mask: torch.Tensor | None,
    pads: list[int],
    *,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> None:
    """Two layers of a batch, four query heads on two key heads: the kernel's statistics equal the exact ones."""
    T = 18
    q, k, _ = inputs((len(pads), 4, T, 8), T, 2, dtype, seed)
    place = layout(len(pads), T, pads, torch.Generator().manual_seed(seed))
    sessions = [Session(STATISTICS, layout=place, implementation=how) for how in ("kernel", "exact")]
    for session in sessions:
        for layer in range(2):
            session.see(layer, Inputs(q, k + layer, k, 0.3, mask, causal))
    compare(*sessions, 2, T, pads)


@pytest.mark.parametrize("additive", [False, True], ids=["boolean", "additive"])
@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_masks_that_models_pass_are_recognised(
    causal: bool, padded: bool, additive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_kernels(monkeypatch)
    pads = [0, 5] if padded else [0, 0]
    mask = dense(causal, 18, 18, torch.tensor(pads))[:, None]
    if additive:
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    observe_both(mask, pads)
    assert calls == [18, 18]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_calls_without_a_mask_and_short_types(
    dtype: torch.dtype, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_kernels(monkeypatch)
    observe_both(None, [0], causal=causal, dtype=dtype)
    assert calls == [18, 18]


def test_a_mask_of_padding_alone_hides_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_kernels(monkeypatch)
    pads = [0, 7]
    observe_both((torch.arange(18)[None] >= torch.tensor(pads)[:, None])[:, None, None], pads)
    assert calls == [18, 18]


def test_windows_and_blocks_are_left_to_the_stream_path(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_kernels(monkeypatch)
    away = torch.arange(18)[:, None] - torch.arange(18)
    blocks = torch.arange(18)[:, None] // 4 >= torch.arange(18) // 4
    for mask in ((away >= 0) & (away < 5), away.abs() < 6, blocks):
        observe_both(mask[None, None], [0])
    assert calls == []


@settings(max_examples=5, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 1000))
def test_any_other_mask_is_left_to_the_stream_path(seed: int) -> None:
    mask = torch.rand(1, 1, 18, 18, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask |= torch.eye(18, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        calls = count_kernels(patch)
        observe_both(mask, [0], seed=seed)
        assert calls == []


def test_an_additive_mask_with_other_values_is_a_bias() -> None:
    slope = -torch.arange(18.0)[None, None, None].expand(1, 1, 18, 18)
    with pytest.MonkeyPatch.context() as patch:
        calls = count_kernels(patch)
        observe_both(slope, [0])
        assert calls == []


@pytest.mark.parametrize("name", ["tiny-mdm", "tiny-arm"])
def test_a_trace_by_the_kernel_equals_the_exact_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_kernels(monkeypatch)
    lens = fl.load(name)
    options = {"max_new_tokens": 2, "layers": [1]} | ({"steps": 1} if name == "tiny-mdm" else {})
    traces = [lens.trace("Who?", **options, implementation=how) for how in ("kernel", "exact")]
    assert calls
    for variable in traces[0].data.data_vars:
        found, wanted = (torch.tensor(trace.data[variable].values).double() for trace in traces)
        scale = max(1.0, float(wanted.nan_to_num().abs().max()))
        torch.testing.assert_close(found, wanted, atol=2e-5 * scale, rtol=0, equal_nan=True)
