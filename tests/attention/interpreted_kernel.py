"""The kernels give what the whole matrix gives. Run in Triton's interpreter: see test_kernel.py.

Tiles are 16 × 16, the smallest that tensor cores take, so that short sequences have hidden, whole and cut tiles.
"""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

from floatlens.attention.call import Call, PositionLayout
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.kernel import available, column_sums
from floatlens.attention.statistic import STATISTICS

SMALL = (16, 16, 4, 1)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = ["other", "query", "doc1"]


def close(found: torch.Tensor, wanted: torch.Tensor, name: str) -> None:
    """Equal to 1e-5 of the largest value, or of 1 where all are smaller."""
    scale = max(1.0, float(wanted.nan_to_num().abs().max()))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-5 * scale, rtol=0, err_msg=name)


def inputs(
    shape: tuple[int, int, int, int], queries: int, kv_heads: int, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and regions of B rows; one query and one key are zero, since a zero vector has no angle."""
    B, H, T, D = shape
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, queries, D, generator=generator) * 2
    k = torch.randn(B, kv_heads, T, D, generator=generator) * 2
    q[0, 0, -1] = 0.0
    k[0, 0, T // 2] = 0.0
    region = torch.randint(0, len(NAMES), (B, T), generator=generator)
    region[:, : T // 2] = 2  # one long region, so that some tiles lie inside it
    return q.to(dtype), k.to(dtype), region


def dense(causal: bool, queries: int, keys: int, start_B: torch.Tensor) -> torch.Tensor:
    """The mask as a matrix (B, Q, T): full or causal, for the last queries; rows and columns of padding are False."""
    j, p = torch.arange(keys)[None, None], torch.arange(keys - queries, keys)[None, :, None]
    return ((j <= p) | (not causal)) & (j >= start_B[:, None, None]) & (p >= start_B[:, None, None])


def exact_call(
    q: torch.Tensor, k: torch.Tensor, region: torch.Tensor, causal: bool, start: torch.Tensor, scaling: float
) -> Call:
    """The call with its mask written out, as a session would see it."""
    (B, _, Q, _), T = q.shape, k.shape[2]
    real = torch.arange(T)[None] >= start[:, None]
    region = torch.where(real, region, -1)
    layout = PositionLayout(real, region, [NAMES] * B, region == 2, torch.zeros(B, T, dtype=torch.bool))
    position = {"layers": (0,), "layout": layout, "length": T, "first_query": T - Q, "starts_over": Q == T}
    return Call(q, k, k, scaling, dense(causal, Q, T, start)[:, None], False, **position)


def sums_of(call: Call, causal: bool, start: torch.Tensor, lse: torch.Tensor | None = None) -> Any:
    """What the kernel returns for the call: weights by region, entropy, logs of the rows' sums."""
    region = call.layout.region_BN[:, call.query_positions]
    return column_sums(
        call.q_BHQD, call.k_BKTD, region, 3, scaling=call.scale, causal=causal, offset=call.first_query,
        start_B=start, lse_BHQ=lse, tiles=SMALL,
    )  # fmt: skip


def compare(pooled: torch.Tensor, spread: torch.Tensor, call: Call) -> None:
    """Every statistic made of the sums equals its definition on the whole matrix."""
    matrices = ExactMatrices()
    matrices.see(call)
    rows_B, member = matrices.real_rows(call).sum((1, 2, 3)), call.layout.member_BRN
    close(pooled.sum(2) / rows_B[:, None, None], STATISTICS["received"].exact(matrices, call), "received")
    close(spread / rows_B[:, None], STATISTICS["entropy"].exact(matrices, call), "entropy")
    flow = pooled.mean(1) @ member.transpose(1, 2)
    total = flow.sum(-1, keepdim=True)
    close(torch.where(total > 0, flow / total, 0.0), STATISTICS["flow"].exact(matrices, call), "flow")
    if call.starts_over:
        asks = member[:, 1].sum(-1)
        mass = torch.einsum("bht,bt->bh", pooled[:, :, 1], call.layout.gold_BN.float()) / asks[:, None]
        close(mass, STATISTICS["query_mass"].exact(matrices, call), "query_mass")


def test_a_cpu_can_run_the_kernels_here() -> None:
    assert available("cpu")


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_sums_are_those_of_the_whole_matrix(causal: bool, dtype: torch.dtype) -> None:
    """Two rows, one of them padded; two query heads share a key head; 34 positions are two tiles and a bit."""
    q, k, region = inputs((2, 2, 34, 8), 34, 1, dtype, seed=len(str(dtype)))
    start = torch.tensor([0, 5])
    call = exact_call(q, k, region, causal, start, 0.3)
    compare(*sums_of(call, causal, start)[:2], call)


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.integers(2, 50))
    return {
        "keys": keys,
        "queries": draw(st.integers(1, keys)),
        "kv_heads": draw(st.sampled_from([1, 2])),
        "group": draw(st.sampled_from([1, 2])),
        "head_dim": draw(st.sampled_from([4, 16, 20])),
        "causal": draw(st.booleans()),
        "start": draw(st.integers(0, keys - 1)),
        "dtype": draw(st.sampled_from(TYPES)),
        "told": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }


# Without shrinking: the interpreter takes seconds per example.
@settings(max_examples=12, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
@given(situations())
def test_any_shape_gives_the_exact_statistics(s: dict[str, Any]) -> None:
    shape = (1, s["kv_heads"] * s["group"], s["keys"], s["head_dim"])
    q, k, region = inputs(shape, s["queries"], s["kv_heads"], s["dtype"], s["seed"])
    start = torch.tensor([s["start"]])
    call = exact_call(q, k, region, s["causal"], start, 0.5)
    compare(*sums_of(call, s["causal"], start, log_of_sums(call) if s["told"] else None)[:2], call)


def log_of_sums(call: Call) -> torch.Tensor:
    """What a forward kernel returns beside its output: the natural log of each row's sum."""
    scores = call.q @ call.k.repeat_interleave(call.H // call.K, 1).transpose(2, 3) * call.scale
    assert call.mask is not None
    return scores.masked_fill(~call.mask, -torch.inf).logsumexp(-1)


def test_the_first_pass_finds_the_natural_log_of_the_sums() -> None:
    q, k, region = inputs((2, 2, 34, 8), 20, 1, torch.float32, seed=0)
    start = torch.tensor([0, 17])
    call = exact_call(q, k, region, True, start, 0.3)
    torch.testing.assert_close(sums_of(call, True, start)[2], log_of_sums(call), atol=1e-5, rtol=0)


def test_the_log_is_read_in_base_e() -> None:
    """A row's sum that is told twice as large halves the weights."""
    q, k, _ = inputs((1, 1, 16, 8), 16, 1, torch.float32, seed=1)
    start = torch.tensor([0])
    call = exact_call(q, k, torch.zeros(1, 16), False, start, 8**-0.5)
    lse = log_of_sums(call)
    once, twice = (sums_of(call, False, start, told)[0] for told in (lse, lse + math.log(2)))
    torch.testing.assert_close(twice, once / 2)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_parts_of_the_queries_add_up_to_all_of_them(causal: bool) -> None:
    """As when a cache is extended in chunks, or when only some positions in the middle are computed anew."""
    q, k, region = inputs((1, 2, 34, 8), 34, 2, torch.float32, seed=2)
    start = torch.tensor([0])
    call = exact_call(q, k, region, causal, start, 8**-0.5)
    parts = [
        column_sums(
            q[:, :, a:b], k, region[:, a:b], 3, scaling=call.scale, causal=causal, offset=a, start_B=start, tiles=SMALL
        )
        for a, b in ((0, 11), (11, 13), (13, 34))
    ]  # fmt: skip
    compare(sum(part[0] for part in parts), sum(part[1] for part in parts), call)


def test_queries_and_keys_may_lie_in_memory_in_any_order() -> None:
    q, k, region = inputs((1, 2, 18, 8), 18, 2, torch.float32, seed=4)
    heads_inside = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    dims_outside = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k)]
    start = torch.tensor([0])
    wanted = sums_of(exact_call(q, k, region, False, start, 0.3), False, start)
    for moved in (heads_inside, dims_outside):
        found = sums_of(exact_call(*moved, region, False, start, 0.3), False, start)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_queries_that_are_all_padding_add_nothing() -> None:
    q, k, region = inputs((1, 1, 34, 8), 4, 1, torch.float32, seed=5)
    pooled, spread, _ = column_sums(
        q, k, region[:, :4], 3, scaling=0.3, causal=False, offset=0, start_B=torch.tensor([20]), tiles=SMALL
    )
    assert not pooled.any() and not spread.any()
