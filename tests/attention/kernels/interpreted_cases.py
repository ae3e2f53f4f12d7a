"""The kernels give what the whole matrix gives. Run in Triton's interpreter: see test_interpreter.py.

Tiles are 16 × 16, the smallest that tensor cores take, so that short sequences have hidden, whole and cut tiles.
"""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

from floatlens.attention.call import Call, PositionLayout
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.kernels.column_sums import ColumnSums, Regions, Tiles, available, column_sums
from floatlens.attention.kernels.interval_mask import FAR, IntervalMask
from floatlens.attention.statistic import STATISTICS

SMALL = Tiles(queries=16, keys=16, warps=4, stages=1)
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


def exact_call(
    q: torch.Tensor, k: torch.Tensor, region: torch.Tensor, mask: IntervalMask, start: torch.Tensor, scaling: float
) -> Call:
    """The call with its mask written out, as a session would see it."""
    (B, _, Q, _), T = q.shape, k.shape[2]
    real = torch.arange(T)[None] >= start[:, None]
    region = torch.where(real, region, -1)
    layout = PositionLayout(real, region, [NAMES] * B, region == 2, torch.zeros(B, T, dtype=torch.bool))
    return Call((0,), q, k, k, layout, T, scaling, T - Q, Q == T, mask.dense(Q, T, start)[:, None])


def compare(sums: ColumnSums, call: Call) -> None:
    """Every statistic made of the sums equals its definition on the whole matrix."""
    matrices = ExactMatrices()
    matrices.see(call)
    rows_B = matrices.real_rows(call).sum((1, 2, 3))
    pooled, member = sums.pooled_BHRT, call.layout.member_BRN
    close(pooled.sum(2) / rows_B[:, None, None], STATISTICS["received"].exact(matrices, call), "received")
    close(sums.spread_BH / rows_B[:, None], STATISTICS["entropy"].exact(matrices, call), "entropy")
    for name, sum_BHT in (("qk", sums.qk_BHT), ("qk_norm", sums.qk_norm_BHT), ("qk_cos", sums.qk_cos_BHT)):
        close(sum_BHT / sums.count_BT[:, None], STATISTICS[name].exact(matrices, call), name)
    flow = pooled.mean(1) @ member.transpose(1, 2)
    total = flow.sum(-1, keepdim=True)
    close(torch.where(total > 0, flow / total, 0.0), STATISTICS["flow"].exact(matrices, call), "flow")
    if call.starts_over:
        asks = member[:, 1].sum(-1)
        mass = torch.einsum("bht,bt->bh", pooled[:, :, 1], call.layout.gold_BN.float()) / asks[:, None]
        close(mass, STATISTICS["query_mass"].exact(matrices, call), "query_mass")


MASKS = {
    "full": IntervalMask(),
    "causal": IntervalMask(ahead=0),
    "block-causal": IntervalMask(block=6),
    "sliding": IntervalMask(back=19, ahead=0),
    "both sides": IntervalMask(back=18, ahead=3),
}


def test_a_cpu_can_run_the_kernels_here() -> None:
    assert available("cpu")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*zip(MASKS, [*TYPES, *TYPES], strict=False), ("full", torch.bfloat16), ("causal", torch.float16)],
    ids=str,
)
def test_the_sums_are_those_of_the_whole_matrix(kind: str, dtype: torch.dtype) -> None:
    """Two rows, one of them padded; two query heads share a key head; 34 positions are two tiles and a bit."""
    q, k, region = inputs((2, 2, 34, 8), 34, 1, dtype, seed=len(kind))
    start = torch.tensor([0, 5])
    call = exact_call(q, k, region, MASKS[kind], start, 0.3)
    compare(
        column_sums(
            q, k, scaling=0.3, mask=MASKS[kind], start_B=start, regions=Regions(call.layout.region_BN, 3), tiles=SMALL
        ),
        call,
    )


@st.composite
def situations(draw: st.DrawFn) -> dict[str, int]:
    keys = draw(st.integers(2, 34))
    return {
        "keys": keys,
        "queries": draw(st.integers(1, keys)),
        "kv_heads": draw(st.sampled_from([1, 2])),
        "group": draw(st.sampled_from([1, 2])),
        "head_dim": draw(st.sampled_from([4, 16, 20])),
        "back": draw(st.sampled_from([FAR, 0, 5, 17])),
        "ahead": draw(st.sampled_from([FAR, 0, 2, 19])),
        "block": draw(st.sampled_from([FAR, 1, 4, 16, 18])),
        "start": draw(st.integers(0, keys - 1)),
        "dtype": draw(st.sampled_from([0, 1, 2])),
        "told": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }


# Without shrinking: the interpreter takes seconds per example.
@settings(max_examples=10, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
@given(situations())
def test_any_mask_and_shape_gives_the_exact_statistics(s: dict[str, int]) -> None:
    shape = (1, s["kv_heads"] * s["group"], s["keys"], s["head_dim"])
    q, k, region = inputs(shape, s["queries"], s["kv_heads"], TYPES[s["dtype"]], s["seed"])
    mask = IntervalMask(s["back"], s["ahead"], s["block"])
    start = torch.tensor([s["start"]])
    call = exact_call(q, k, region, mask, start, 0.5)
    sums = column_sums(
        q, k, scaling=0.5, mask=mask, start_B=start, regions=Regions(call.layout.region_BN[:, -s["queries"] :], 3),
        lse_BHQ=log_of_sums(call) if s["told"] else None, tiles=SMALL,
    )  # fmt: skip
    compare(sums, call)


def log_of_sums(call: Call) -> torch.Tensor:
    """What a forward kernel returns beside its output: the natural log of each row's sum."""
    scores = call.q @ call.k.repeat_interleave(call.H // call.K, 1).transpose(2, 3) * call.scaling
    assert call.mask is not None
    return scores.masked_fill(~call.mask, -torch.inf).logsumexp(-1)


def test_the_first_pass_finds_the_natural_log_of_the_sums() -> None:
    q, k, region = inputs((2, 2, 34, 8), 20, 1, torch.float32, seed=0)
    start = torch.tensor([0, 17])
    call = exact_call(q, k, region, IntervalMask(ahead=0), start, 0.3)
    found = column_sums(q, k, scaling=0.3, mask=IntervalMask(ahead=0), start_B=start, tiles=SMALL).lse_BHQ
    torch.testing.assert_close(found, log_of_sums(call), atol=1e-5, rtol=0)


def test_the_log_is_read_in_base_e() -> None:
    """A row's sum that is told twice as large halves the weights."""
    q, k, _ = inputs((1, 1, 16, 8), 16, 1, torch.float32, seed=1)
    call = exact_call(q, k, torch.zeros(1, 16), IntervalMask(), torch.tensor([0]), 8**-0.5)
    lse = log_of_sums(call)
    once, twice = (column_sums(q, k, lse_BHQ=told, tiles=SMALL) for told in (lse, lse + math.log(2)))
    torch.testing.assert_close(twice.pooled_BHRT, once.pooled_BHRT / 2)


def test_parts_of_the_queries_add_up_to_all_of_them() -> None:
    """As when a cache is extended in chunks, or when only some positions in the middle are computed anew."""
    q, k, region = inputs((1, 2, 34, 8), 34, 2, torch.float32, seed=2)
    call = exact_call(q, k, region, IntervalMask(block=4), torch.tensor([0]), 8**-0.5)
    parts = [
        column_sums(
            q[:, :, a:b],
            k,
            mask=IntervalMask(block=4, offset=a),
            regions=Regions(region[:, a:b], 3),
            tiles=SMALL,
        )
        for a, b in ((0, 11), (11, 13), (13, 34))
    ]
    compare(ColumnSums(*(sum(getattr(part, name) for part in parts) for name in SUMMED), parts[0].lse_BHQ), call)


SUMMED = ("pooled_BHRT", "spread_BH", "qk_BHT", "qk_norm_BHT", "qk_cos_BHT", "count_BT")


def test_without_regions_all_queries_are_one() -> None:
    q, k, region = inputs((1, 2, 20, 8), 20, 1, torch.bfloat16, seed=3)
    plain = column_sums(q, k, tiles=SMALL)
    parted = column_sums(q, k, regions=Regions(region, 3), tiles=SMALL)
    assert plain.pooled_BHRT.shape == (1, 2, 1, 20)
    close(plain.pooled_BHRT, parted.pooled_BHRT.sum(2, keepdim=True), "pooled")


def test_queries_and_keys_may_lie_in_memory_in_any_order() -> None:
    q, k, _ = inputs((1, 2, 18, 8), 18, 2, torch.float32, seed=4)
    heads_inside = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    dims_outside = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k)]
    wanted = column_sums(q, k, tiles=SMALL)
    for moved in (heads_inside, dims_outside):
        found = column_sums(*moved, tiles=SMALL)
        for name in SUMMED:
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name


def test_queries_that_are_all_padding_add_nothing() -> None:
    q, k, region = inputs((1, 1, 34, 8), 4, 1, torch.float32, seed=5)
    mask = IntervalMask(offset=0)
    sums = column_sums(q, k, mask=mask, start_B=torch.tensor([20]), regions=Regions(region[:, :4], 3), tiles=SMALL)
    assert not any(bool(getattr(sums, name).any()) for name in SUMMED)
