# mypy: ignore-errors
"""Triton kernels of `kernel.column_sums`: sums down the columns of attention, which is never written to memory.

`column_kernel` is the main pass: a tile of keys stays on the chip, tiles of queries are streamed, and each weight is
`exp2(q·k · scale · log2(e) - lse · log2(e))`. The scores are held transposed (keys × queries), so that

- every sum over queries is a sum along a row, owned by one program: no atomics, and the same bits on every run;
- the weights are the left operand of the product with the regions' membership, and stay in registers.

`logsumexp_kernel` computes the log of each row's sum if the forward kernel did not return it.

Suffixes: N keys of a tile, M queries of a tile, D head dim, R regions. Query i is at key i + offset; queries and keys before
`first` are padding.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
NEVER: tl.constexpr = tl.constexpr(-1e30)  # exp2 of it is 0, and 0 · NEVER is 0, as 0 · -inf is not

# Arguments that change from step to step; specialising on them would recompile the kernel for every value.
VARYING = ["Q", "T", "R", "offset"]


@triton.jit
def _dot(a, b, WIDEN: tl.constexpr):
    """Product with float32 accumulation. WIDEN is for Triton's interpreter, which cannot multiply bfloat16."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _load_rows(x, stride, rows, count, D: tl.constexpr, DP: tl.constexpr, BOUND: tl.constexpr):
    """Rows of a matrix, zero beyond its `count` rows (if BOUND) and beyond its D columns."""
    d = tl.arange(0, DP)
    at = x + rows[:, None] * stride + d[None, :]
    if BOUND:
        return tl.load(at, mask=(rows[:, None] < count) & (d[None, :] < D), other=0.0)
    if D == DP:
        return tl.load(at)
    return tl.load(at, mask=d[None, :] < D, other=0.0)


@triton.jit(do_not_specialize=VARYING)
def logsumexp_kernel(
    q, k, start, lse,
    q_b, q_h, q_t, k_b, k_h, k_t, H, GROUP, Q, T, offset, scale2,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Natural log of each row's sum of exp(score); a tile of queries stays, keys are streamed. Grid (tiles, B·H)."""
    tile, row = tl.program_id(0), tl.program_id(1)
    b, h = row // H, row % H
    first = tl.load(start + b)
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    k += b.to(tl.int64) * k_b + (h // GROUP).to(tl.int64) * k_h
    i = tile * BM + tl.arange(0, BM)
    p_M = i + offset
    q_MD = _load_rows(q, q_t, i, Q, D, DP, True)

    # Tiles of keys: begin..whole and cut..end need a mask.
    end_key, all_keys = T, T
    if CAUSAL:
        end_key = tl.minimum(tl.minimum(tile * BM + BM, Q) + offset, T)
        all_keys = tl.minimum(tl.maximum(tile * BM + offset, first) + 1, T)
    begin, end = first // BN, tl.cdiv(end_key, BN)
    whole = tl.minimum(tl.cdiv(first, BN), end)
    cut = tl.maximum(tl.minimum(all_keys // BN, end), whole)
    top_M = tl.full([BM], NEVER, tl.float32)
    sum_M = tl.zeros([BM], tl.float32)
    for part in tl.static_range(3):  # of tiles: those in the middle need no mask
        low = begin if part == 0 else whole if part == 1 else cut
        high = whole if part == 0 else cut if part == 1 else end
        for t in range(low, high):
            j = t * BN + tl.arange(0, BN)
            k_ND = _load_rows(k, k_t, j, T, D, DP, part != 1)
            x_MN = _dot(q_MD, tl.trans(k_ND), WIDEN) * scale2
            if part != 1:
                seen = (j[None, :] >= first) & (j[None, :] < T) & (p_M[:, None] >= first)
                if CAUSAL:
                    seen &= j[None, :] <= p_M[:, None]
                # Twice as low as the lowest maximum: a row that has seen nothing yet adds exp2(NEVER) = 0, and not exp2(0).
                x_MN = tl.where(seen, x_MN, 2 * NEVER)
            higher_M = tl.maximum(top_M, tl.max(x_MN, 1))
            sum_M = sum_M * tl.exp2(top_M - higher_M) + tl.sum(tl.exp2(x_MN - higher_M[:, None]), 1)
            top_M = higher_M
    lse_M = tl.where(p_M >= first, (top_M + tl.log2(sum_M)) * LN2, float("-inf"))
    tl.store(lse + row.to(tl.int64) * Q + i, lse_M, mask=i < Q)


@triton.jit
def _pool(pooled_NR, p_NM, region_M, RP: tl.constexpr, dtype: tl.constexpr, WIDEN: tl.constexpr):
    """Add the weights of each region's queries.

    A 16-bit weight would lose digits, so it is split into two of them, whose products with 0 and 1 are exact. Cutting bits
    off is cheaper than rounding there and back: on sm80 such a conversion takes as long as an exponential.
    """
    member_MR = tl.where(region_M[:, None] == tl.arange(0, RP)[None, :], 1.0, 0.0).to(dtype)
    if dtype == tl.float32:
        return pooled_NR + _dot(p_NM, member_MR, WIDEN)
    KEEP: tl.constexpr = -0x10000 if dtype == tl.bfloat16 else -0x2000  # the bits that a bfloat16 or float16 has
    high_NM = (p_NM.to(tl.int32, bitcast=True) & KEEP).to(tl.float32, bitcast=True)
    pooled_NR += _dot((p_NM - high_NM).to(dtype), member_MR, WIDEN)
    return pooled_NR + _dot(high_NM.to(dtype), member_MR, WIDEN)


@triton.jit(do_not_specialize=VARYING)
def column_kernel(
    q, k, start, lse, region, pooled, spread,
    q_b, q_h, q_t, k_b, k_h, k_t, H, GROUP, Q, T, offset, scale2, R,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, RP: tl.constexpr,
    CAUSAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """All sums over queries: a tile of keys stays, tiles of queries are streamed. Grid (tiles of keys, B·H)."""
    tile, row = tl.program_id(0), tl.program_id(1)
    b, h = row // H, row % H
    row64 = row.to(tl.int64)
    dtype: tl.constexpr = q.dtype.element_ty
    first = tl.load(start + b)
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    k += b.to(tl.int64) * k_b + (h // GROUP).to(tl.int64) * k_h
    lse += row64 * Q
    region += b.to(tl.int64) * Q
    j = tile * BN + tl.arange(0, BN)
    k_ND = _load_rows(k, k_t, j, T, D, DP, True)

    # Tiles of queries: those of begin..whole and cut..end need a mask.
    nearest, furthest = tl.maximum(tile * BN, first), tl.minimum(tile * BN + BN, T) - 1
    some, every = first, first
    if CAUSAL:
        some, every = nearest, tl.maximum(furthest, first)
    end = tl.where(furthest >= first, tl.cdiv(Q, BM), 0)  # a tile of padding has none
    begin = tl.minimum(tl.maximum(some - offset, 0) // BM, end)
    whole = tl.minimum(tl.cdiv(tl.maximum(every - offset, 0), BM), end)
    cut = tl.maximum(tl.minimum(Q // BM, end), whole)
    spread_N = tl.zeros([BN], tl.float32)
    pooled_NR = tl.zeros([BN, RP], tl.float32)
    for part in tl.static_range(3):
        low = begin if part == 0 else whole if part == 1 else cut
        high = whole if part == 0 else cut if part == 1 else end
        for t in range(low, high):
            i = t * BM + tl.arange(0, BM)
            q_MD = _load_rows(q, q_t, i, Q, D, DP, part != 1)
            lse_M = tl.load(lse + i, mask=i < Q, other=0.0) if part != 1 else tl.load(lse + i)
            region_M = tl.load(region + i, mask=i < Q, other=-1) if part != 1 else tl.load(region + i)
            x_NM = _dot(k_ND, tl.trans(q_MD), WIDEN) * scale2 - (lse_M * LOG2E)[None, :]
            if part != 1:
                seen = (i + offset >= first)[None, :] & (i < Q)[None, :] & (j >= first)[:, None]
                if CAUSAL:
                    seen &= j[:, None] <= (i + offset)[None, :]
                x_NM = tl.where(seen, x_NM, NEVER)
            p_NM = tl.exp2(x_NM)
            spread_N += tl.sum(p_NM * x_NM, 1)
            pooled_NR = _pool(pooled_NR, p_NM, region_M, RP, dtype, WIDEN)

    # Columns of padding, and those after the last key, hold arbitrary values up to here.
    real = (j >= first) & (j < T)
    tl.store(spread + row64 * tl.num_programs(0) + tile, tl.sum(tl.where(real, spread_N, 0.0), 0) * -LN2)
    r = tl.arange(0, RP)
    at = row64 * R * T + r[None, :] * T + j[:, None]
    tl.store(pooled + at, tl.where(real[:, None], pooled_NR, 0.0), mask=(j[:, None] < T) & (r[None, :] < R))
