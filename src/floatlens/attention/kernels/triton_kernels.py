# mypy: ignore-errors
"""Triton kernels for sums down the columns of the attention matrix, which is never written to memory.

`column_kernel` is the main pass: a tile of keys stays on the chip, tiles of queries are streamed, and each weight is
`exp2(q·k · scale · log2(e) - lse · log2(e))`. The scores are held transposed (keys × queries), so that

- every sum over queries is a sum along a row, owned by one program: no atomics, and the same bits on every run;
- the weights are the left operand of the product with the regions' membership, and stay in registers.

`logsumexp_kernel` computes the log of each row's sum if the forward kernel did not return it. `query_kernel` reads the
queries once for their norms and for the sums of each tile, since the column mean of q·k is (mean of q)·k.

Suffixes: N keys of a tile, M queries of a tile, D head dim, R regions.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
NEVER: tl.constexpr = tl.constexpr(-1e30)  # exp2 of it is 0, and 0 · NEVER is 0, as 0 · -inf is not

# Arguments that change from step to step; specialising on them would recompile the kernel for every value.
VARYING = ["Q", "T", "R", "offset", "back", "ahead", "block"]


@triton.jit
def _dot(a, b, WIDEN: tl.constexpr):
    """Product with float32 accumulation. WIDEN is for Triton's interpreter, which cannot multiply bfloat16."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _visible_keys(position, start, back, ahead, block):
    """First and last key that a query at `position` may see; an empty interval for padding."""
    block_end = start + (tl.maximum(position - start, 0) // block + 1) * block
    low = tl.maximum(position - back, start)
    high = tl.minimum(position + ahead, block_end - 1)
    return low, tl.where(position >= start, high, -1)


@triton.jit
def _first_to_see(key, start, ahead, block):
    """Position of the first query that may see `key`."""
    return tl.maximum(tl.maximum(key - ahead, start), start + tl.maximum(key - start, 0) // block * block)


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


@triton.jit
def _whole_tiles(begin, end, whole, cut):
    """The tiles whole..cut of begin..end that need no mask; where there are none, both ends are `end`."""
    whole = tl.maximum(whole, begin)
    cut = tl.minimum(cut, end)
    none = cut <= whole
    return tl.where(none, end, whole), tl.where(none, end, cut)


@triton.jit
def _cut_tile(step, begin, whole, cut):
    """The tile at `step` among those that need a mask: begin..whole, then from `cut` on."""
    return tl.where(begin + step < whole, begin + step, cut + step - (whole - begin))


@triton.jit
def _add_exponentials(top_M, sum_M, x_MN):
    """Extend a running maximum and the sum of exp2(x - maximum) by further columns."""
    higher_M = tl.maximum(top_M, tl.max(x_MN, 1))
    sum_M = sum_M * tl.exp2(top_M - higher_M) + tl.sum(tl.exp2(x_MN - higher_M[:, None]), 1)
    return higher_M, sum_M


@triton.jit(do_not_specialize=VARYING)
def logsumexp_kernel(
    q, k, start, lse,
    q_b, q_h, q_t, k_b, k_h, k_t,
    H, GROUP, Q, T, offset, back, ahead, block, scale2,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Natural log of each row's sum of exp(score); a tile of queries stays, keys are streamed. Grid (tiles, B·H)."""
    tile, row = tl.program_id(0), tl.program_id(1)
    b, h = row // H, row % H
    first = tl.load(start + b)
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    k += b.to(tl.int64) * k_b + (h // GROUP).to(tl.int64) * k_h
    i = tile * BM + tl.arange(0, BM)
    q_MD = _load_rows(q, q_t, i, Q, D, DP, True)

    # Both ends of the interval move forward with the query, so the first and last query of the tile give the keys that any
    # or all of its queries may see.
    any_low, all_high = _visible_keys(tl.maximum(tile * BM + offset, first), first, back, ahead, block)
    all_low, any_high = _visible_keys(tl.minimum(tile * BM + BM, Q) - 1 + offset, first, back, ahead, block)
    begin, end = any_low // BN, tl.cdiv(tl.minimum(any_high + 1, T), BN)
    whole, cut = _whole_tiles(begin, end, tl.cdiv(all_low, BN), tl.minimum(all_high + 1, T) // BN)

    top_M = tl.full([BM], NEVER, tl.float32)
    sum_M = tl.zeros([BM], tl.float32)
    for t in range(whole, cut):
        k_ND = _load_rows(k, k_t, t * BN + tl.arange(0, BN), T, D, DP, False)
        top_M, sum_M = _add_exponentials(top_M, sum_M, _dot(q_MD, tl.trans(k_ND), WIDEN) * scale2)
    low, high = _visible_keys(i + offset, first, back, ahead, block)
    for step in range(0, whole - begin + end - cut):
        j = _cut_tile(step, begin, whole, cut) * BN + tl.arange(0, BN)
        k_ND = _load_rows(k, k_t, j, T, D, DP, True)
        visible = (j[None, :] >= low[:, None]) & (j[None, :] <= high[:, None]) & (j[None, :] < T)
        # Twice as low as the lowest maximum: a row that has seen nothing yet adds exp2(NEVER) = 0, and not exp2(0).
        x_MN = tl.where(visible, _dot(q_MD, tl.trans(k_ND), WIDEN) * scale2, 2 * NEVER)
        top_M, sum_M = _add_exponentials(top_M, sum_M, x_MN)
    lse_M = tl.where(i + offset >= first, (top_M + tl.log2(sum_M)) * LN2, float("-inf"))
    tl.store(lse + row.to(tl.int64) * Q + i, lse_M, mask=i < Q)


@triton.jit(do_not_specialize=VARYING)
def query_kernel(
    q, norm, inverse, tile_q, tile_unit, tile_norm,
    q_b, q_h, q_t,
    H, Q,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Norm of each query and its inverse; per tile of queries the sums of q, q/|q| and |q|. Grid (tiles, B·H)."""
    tile, row = tl.program_id(0), tl.program_id(1)
    q += (row // H).to(tl.int64) * q_b + (row % H).to(tl.int64) * q_h
    i = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    q_MD = _load_rows(q, q_t, i, Q, D, DP, True).to(tl.float32)
    norm_M = tl.sqrt(tl.sum(q_MD * q_MD, 1))
    inverse_M = tl.where(norm_M > 0, 1.0 / norm_M, 0.0)
    tl.store(norm + row.to(tl.int64) * Q + i, norm_M, mask=i < Q)
    tl.store(inverse + row.to(tl.int64) * Q + i, inverse_M, mask=i < Q)
    at = row.to(tl.int64) * tl.num_programs(0) + tile
    tl.store(tile_q + at * DP + d, tl.sum(q_MD, 0))
    tl.store(tile_unit + at * DP + d, tl.sum(q_MD * inverse_M[:, None], 0))
    tl.store(tile_norm + at, tl.sum(norm_M, 0))


@triton.jit
def _exponents(
    k_ND, q, q_t, lse, i, Q, scale2, D: tl.constexpr, DP: tl.constexpr, WIDEN: tl.constexpr
):  # fmt: skip
    """Log in base 2 of the weights of queries i, all of which may see all keys of the tile."""
    q_MD = _load_rows(q, q_t, i, Q, D, DP, False)
    lse2_M = tl.load(lse + i) * LOG2E
    return _dot(k_ND, tl.trans(q_MD), WIDEN) * scale2 - lse2_M[None, :]


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
    q, k, start, lse, region, order, rank,
    norm, inverse, tile_q, tile_unit, tile_norm,
    pooled, spread, qk, qk_norm, qk_cos, count,
    q_b, q_h, q_t, k_b, k_h, k_t,
    H, GROUP, Q, T, R, offset, back, ahead, block, scale2,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, RP: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """All sums over queries: a tile of keys stays, tiles of queries are streamed. Grid (tiles of keys, B·H).

    `order` lists the tiles of queries that lie in one region, then the others; `rank` counts the first kind before a tile.
    """
    tile, row = tl.program_id(0), tl.program_id(1)
    b, h = row // H, row % H
    row64 = row.to(tl.int64)
    dtype: tl.constexpr = q.dtype.element_ty
    first = tl.load(start + b)
    q += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    k += b.to(tl.int64) * k_b + (h // GROUP).to(tl.int64) * k_h
    lse += row64 * Q
    norm += row64 * Q
    inverse += row64 * Q
    region += b.to(tl.int64) * Q
    j = tile * BN + tl.arange(0, BN)
    k_ND = _load_rows(k, k_t, j, T, D, DP, True)

    # Tiles of queries that may see some key of the tile: begin..end; those that may see all of them: whole..cut.
    nearest, furthest = tl.maximum(tile * BN, first), tl.minimum(tile * BN + BN, T) - 1
    tiles = tl.cdiv(Q, BM)
    some = _first_to_see(nearest, first, ahead, block) - offset
    every = _first_to_see(furthest, first, ahead, block) - offset
    begin = tl.maximum(some, 0) // BM
    end = tl.cdiv(tl.maximum(tl.minimum(furthest + back + 1 - offset, Q), 0), BM)
    end = tl.where(furthest >= first, end, 0)  # a tile of padding
    last = tl.maximum(tl.minimum(nearest + back + 1 - offset, Q), 0) // BM
    whole, cut = _whole_tiles(begin, end, tl.cdiv(tl.maximum(every, 0), BM), last)

    order += b * tiles
    rank += b * (tiles + 1)
    alone, alone_end, alone_all = tl.load(rank + whole), tl.load(rank + cut), tl.load(rank + tiles)

    r = tl.arange(0, RP)
    spread_N = tl.zeros([BN], tl.float32)
    pooled_NR = tl.zeros([BN, RP], tl.float32)
    for place in range(alone, alone_end):
        at = tl.load(order + place) * BM
        x_NM = _exponents(k_ND, q, q_t, lse, at + tl.arange(0, BM), Q, scale2, D, DP, WIDEN)
        p_NM = tl.exp2(x_NM)
        spread_N += tl.sum(p_NM * x_NM, 1)
        member_R = tl.where(r == tl.load(region + at), 1.0, 0.0)
        pooled_NR += tl.sum(p_NM, 1)[:, None] * member_R[None, :]
    for place in range(alone_all + whole - alone, alone_all + cut - alone_end):
        i = tl.load(order + place) * BM + tl.arange(0, BM)
        x_NM = _exponents(k_ND, q, q_t, lse, i, Q, scale2, D, DP, WIDEN)
        p_NM = tl.exp2(x_NM)
        spread_N += tl.sum(p_NM * x_NM, 1)
        pooled_NR = _pool(pooled_NR, p_NM, tl.load(region + i), RP, dtype, WIDEN)

    qk_N = tl.zeros([BN], tl.float32)
    cos_N = tl.zeros([BN], tl.float32)
    norm_N = tl.zeros([BN], tl.float32)
    count_N = tl.zeros([BN], tl.float32) + (cut - whole) * BM
    for step in range(0, whole - begin + end - cut):
        i = _cut_tile(step, begin, whole, cut) * BM + tl.arange(0, BM)
        inside = i < Q
        q_MD = _load_rows(q, q_t, i, Q, D, DP, True)
        s_NM = _dot(k_ND, tl.trans(q_MD), WIDEN)
        low, high = _visible_keys(i + offset, first, back, ahead, block)
        high = tl.where(inside, high, -1)
        visible = (j[:, None] >= low[None, :]) & (j[:, None] <= high[None, :])
        lse2_M = tl.load(lse + i, mask=inside, other=0.0) * LOG2E
        x_NM = tl.where(visible, s_NM * scale2 - lse2_M[None, :], NEVER)
        p_NM = tl.exp2(x_NM)
        spread_N += tl.sum(p_NM * x_NM, 1)
        region_M = tl.load(region + i, mask=inside, other=-1)
        pooled_NR = _pool(pooled_NR, p_NM, region_M, RP, dtype, WIDEN)
        norm_M = tl.load(norm + i, mask=inside, other=0.0)
        inverse_M = tl.load(inverse + i, mask=inside, other=0.0)
        seen_NM = x_NM > NEVER  # `visible` again, but in the registers of the scores
        qk_N += tl.sum(tl.where(seen_NM, s_NM, 0.0), 1)
        cos_N += tl.sum(tl.where(seen_NM, s_NM * inverse_M[None, :], 0.0), 1)
        norm_N += tl.sum(tl.where(seen_NM, norm_M[None, :], 0.0), 1)
        count_N += tl.sum(tl.where(seen_NM, 1.0, 0.0), 1)

    # For fully visible tiles: the product of a key with the sum of their queries. The keys are loaded again, by a load that
    # differs from the first: if the compiler merged the two, the keys would occupy registers during the loops.
    d = tl.arange(0, DP)
    q_D = tl.zeros([DP], tl.float32)
    unit_D = tl.zeros([DP], tl.float32)
    for begin in range(whole, cut, 16):
        t = begin + tl.arange(0, 16)
        at = (row64 * tiles + t) * DP
        q_D += tl.sum(tl.load(tile_q + at[:, None] + d[None, :], mask=t[:, None] < cut, other=0.0), 0)
        unit_D += tl.sum(tl.load(tile_unit + at[:, None] + d[None, :], mask=t[:, None] < cut, other=0.0), 0)
        norm_N += tl.sum(tl.load(tile_norm + row64 * tiles + t, mask=t < cut, other=0.0), 0)
    at = k + j[:, None] * k_t + d[None, :]
    inside = (j[:, None] < T) & (d[None, :] < D)
    wide_ND = tl.load(at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    qk_N += tl.sum(wide_ND * q_D[None, :], 1)
    cos_N += tl.sum(wide_ND * unit_D[None, :], 1)
    length_N = tl.sqrt(tl.sum(wide_ND * wide_ND, 1))

    # Columns of padding, and those after the last key, hold arbitrary values up to here.
    real = (j >= first) & (j < T)
    inverse_N = tl.where(length_N > 0, 1.0 / length_N, 0.0)
    at = row64 * T + j
    tl.store(qk + at, tl.where(real, qk_N, 0.0), mask=j < T)
    tl.store(qk_cos + at, tl.where(real, cos_N * inverse_N, 0.0), mask=j < T)
    tl.store(qk_norm + at, tl.where(real, norm_N * length_N, 0.0), mask=j < T)
    if h == 0:
        tl.store(count + b * T + j, tl.where(real, count_N, 0.0).to(tl.int32), mask=j < T)
    tl.store(spread + row64 * tl.num_programs(0) + tile, tl.sum(tl.where(real, spread_N, 0.0), 0) * -LN2)
    at = row64 * R * T + r[None, :] * T + j[:, None]
    tl.store(pooled + at, tl.where(real[:, None], pooled_NR, 0.0), mask=(j[:, None] < T) & (r[None, :] < R))
