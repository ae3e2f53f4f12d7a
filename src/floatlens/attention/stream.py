"""The attention weights of a call, computed once, in blocks that stay in a core's cache: some heads, some queries, all keys.

A block is one product for the scores, one exponential, and sums over the weights before the next block overwrites them; with
one more product, by the values, the same weights give the output of attention (`implementation="fused"`), which differs from
`scaled_dot_product_attention` only by rounding. What is not plain softmax attention, and what a statistic wants to see
weight by weight, is computed in tiles of queries with all heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from floatlens.attention.call import LOG2E, Call, Inputs, query_rows

# Weights in a block: one megabyte of float32, which stays in a core's cache (measured: benchmarks/trace.py).
TILE = 1 << 18
NEVER = -1e30  # an exponent that gives weight 0, and 0 · NEVER is still 0, as 0 · -inf is not
TINY = torch.finfo(torch.float32).tiny
CAUSAL = 128  # queries per block of a causal call
FEW = 8  # fewer queries than these are one row each: their weights are kept, and summed for many layers together
LARGEST = 2.0**64  # of the sum of a row's weights before they are divided by it
Space = dict[tuple[str, torch.device], torch.Tensor]
SPAN = 1 << 15  # weights per span of a region, above which sums of each span cost less than a product with all regions
KEPT = 1 << 21  # largest number of weights of writing rows that a call keeps


def scratch(space: Space, name: str, shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    """A float32 tensor with arbitrary content, in a buffer that grows to the largest block and is then reused.

    Allocating a megabyte per block would cost more than the arithmetic on it, because its pages are mapped and cleared.
    """
    size = math.prod(shape)
    buffer = space.get((name, device))
    if buffer is None or buffer.numel() < size:
        buffer = space[name, device] = torch.empty(size, device=device)
    return buffer.as_strided(shape, (shape[1] * shape[2], shape[2], 1))


@dataclass(frozen=True)
class Tile:
    """Queries start..end of a call with all heads and keys.

    weights_BHQT  softmax of the scores, 0 in rows of padding; keep sums or copies of them
    """

    call: Call
    start: int
    end: int
    weights_BHQT: torch.Tensor

    @property
    def T(self) -> int:
        return self.weights_BHQT.shape[-1]

    @property
    def diagonal(self) -> int:
        """Offset of the diagonal: the own key of the tile's query i is key i + diagonal."""
        return self.call.query_keys.start + self.start

    @property
    def scores_BHQT(self) -> torch.Tensor:
        """The scores before the softmax, -inf where a key is masked; computed on demand."""
        return self.call.scores(self.start, self.end)

    @property
    def real_BQ(self) -> torch.Tensor | None:
        """Queries of the tile that are not padding; None when all are real."""
        real = self.call.real_BQ
        return None if real is None else real[:, self.start : self.end]


def can_fuse(inputs: Inputs) -> bool:
    """Whether `weigh` can compute the output of a call: float32 on a CPU, plain softmax attention, no gradient."""
    if not inputs.is_plain or inputs.q_BHQD.dtype != torch.float32 or not inputs.q_BHQD.is_cpu:
        return False
    tensors = (inputs.q_BHQD, inputs.k_BKTD, inputs.v_BKTD)
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def attention_rows(call: Call, start: int, end: int) -> torch.Tensor:
    """Attention weights (B, H, end-start, T) of rows start..end (read-only); rows of padding are 0."""
    if (known := call.rows(start, end)) is not None:
        return known
    weights = call.softmax(start, end)
    return weights if call.real_BQ is None else weights.masked_fill_(~call.real_BQ[:, None, start:end, None], 0.0)


def weigh(
    call: Call, size: int, space: Space, *, show: Callable[[Tile], None] | None = None, output: bool = False
) -> torch.Tensor | None:
    """Compute the weights of a call once, and keep in it what statistics need of them.

    These are the sums over regions, the entropy and the rows that write, or all rows if there are few. `size` is the
    largest number of weights in a block; `show` is called with every tile. `output`: return the output (B, Q, H, D); only
    if `can_fuse`.
    """
    if call.Q < FEW and show is None and call.own_rows is None:
        return _weigh_rows(call, output)
    if call.is_plain and show is None:
        return _weigh_blocks(call, size, space, output)
    pooled_BHRT = torch.zeros(call.B, call.H, call.member_BRQ.shape[1], call.T, device=call.device)
    spread_BH = torch.zeros(call.B, call.H, device=call.device)
    queries = max(1, size // (call.B * call.H * call.T))
    for start in range(0, call.Q, queries):
        tile = Tile(call, start, end := min(call.Q, start + queries), attention_rows(call, start, end))
        pooled, spread = row_sums(call, start, tile.weights_BHQT)
        pooled_BHRT += pooled
        spread_BH += spread
        if show is not None:
            show(tile)
    call.computed.update(pooled=pooled_BHRT, spread=spread_BH)
    return None


def row_sums(call: Call, start: int, rows_BHQT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the queries from `start` on, summed over regions (B, H, R, T), and their entropy (B, H)."""
    member_BRQ = call.member_BRQ[:, None, :, start : start + rows_BHQT.shape[2]]
    bits_BHQ = rows_BHQT.clamp_min(TINY).log2_().mul_(rows_BHQT).sum(-1).neg_()
    if call.sinks_H is not None:  # given that a position is attended, and not the learned sink
        share_BHQ = rows_BHQT.sum(-1)
        bits_BHQ = bits_BHQ / share_BHQ.clamp_min(TINY) + share_BHQ.clamp_min(TINY).log2()
        bits_BHQ = bits_BHQ.masked_fill_(share_BHQ == 0, 0.0)
    return torch.matmul(member_BRQ, rows_BHQT), bits_BHQ.sum(-1) / LOG2E


def _weigh_rows(call: Call, output: bool) -> torch.Tensor | None:
    """`weigh` for few queries, as in cached decoding: the weights are kept, and the sums of many layers taken together."""
    if not call.is_plain:
        call.computed["rows"] = attention_rows(call, 0, call.Q)
        return None
    scores_BHQT = call.scores(0, call.Q)
    if call.Q == 1 and call.mask is None and call.real_BQ is None:
        call.computed["scores"] = scores_BHQT  # so that `products` need not multiply all keys again
    rows_BHQT = scores_BHQT.softmax(-1)
    call.computed["rows"] = rows_BHQT
    if call.real_BQ is not None:  # padded queries have an output, but weight 0; so has a query that sees no key
        rows_BHQT = rows_BHQT.nan_to_num_()
        call.computed["rows"] = rows_BHQT.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
    if not output:
        return None
    M, D = call.B * call.K, call.v_BKTD.shape[-1]
    made = torch.bmm(rows_BHQT.view(M, -1, call.T), call.v_BKTD.flatten(0, 1))
    return made.view(call.B, call.H, call.Q, D).transpose(1, 2).contiguous()


def _weigh_blocks(call: Call, size: int, space: Space, output: bool) -> torch.Tensor | None:
    """`weigh` for plain softmax attention."""
    B, H, K, Q, T, device = call.B, call.H, call.K, call.Q, call.T, call.device
    G, N, D = H // K, B * H, call.v_BKTD.shape[-1]
    values_MTD = call.v_BKTD.flatten(0, 1)
    output_BQHD = torch.empty(B, Q, H, D, device=device) if output else None
    member_NRQ = call.layout.member_NRQ(call.query_positions, H)
    R = member_NRQ.shape[1]
    totals_NQ, dots_NQ = torch.empty(2, N, Q, device=device)  # per row: sum of the weights, and of weights · exponents
    # With several threads, products with one row wait for each other.
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    spans = call.layout.spans(call.query_positions) if alone else []
    spans = spans if len(spans) * SPAN < N * Q * T else []
    # Products are added to contiguous memory, of one region or of all: otherwise torch multiplies head by head.
    pooled_NRT = torch.zeros(R, N, T, device=device).transpose(0, 1) if spans else torch.zeros(N, R, T, device=device)
    first, last = call.writing_queries
    if (last - first) * N * T > KEPT:
        first, last = 0, 0
    rows_NWT = torch.zeros(N, last - first, T, device=device)
    # Subtracting the maxima of the rows costs as much as their sums, and is needed only where these leave the range.
    far = device.type != "cpu" or ("far", call.layers) in call.memory
    for head, start, end, x_NQT in exponent_blocks(call, size, space):
        n, q, keys = x_NQT.shape
        heads, queries = slice(head, head + n), slice(start, end)
        weights_NQT, sums_NQ = scratch(space, "weights", (n, q, keys), device), totals_NQ[heads, queries]
        if not far:
            torch.sum(torch.exp2(x_NQT, out=weights_NQT), -1, out=sums_NQ)
            far = not in_range(sums_NQ)
            if far:
                call.memory["far", call.layers] = True
        if far:
            torch.sum(torch.exp2(x_NQT.sub_(x_NQT.amax(-1, keepdim=True)), out=weights_NQT), -1, out=sums_NQ)
        inverse_NQ = sums_NQ.reciprocal()
        if output_BQHD is not None:
            made = scratch(space, "output", (n // G, G * q, D), device)
            torch.bmm(weights_NQT.view(n // G, G * q, keys), values_MTD[head // G : (head + n) // G, :keys], out=made)
            # A block is a part of one row of the batch, or all heads of several rows.
            row, own = divmod(head, H)
            target_BHQD = output_BQHD[row : row + max(1, n // H), queries, own : own + n].transpose(1, 2)
            shape = target_BHQD.shape
            torch.mul(made.view(shape), inverse_NQ.view(*shape[:3], 1), out=target_BHQD)
        # Dividing the products by the row sums is cheaper than dividing the weights.
        if not spans:
            pooled_NRT[heads, :, :keys].baddbmm_(member_NRQ[heads, :, queries] * inverse_NQ[:, None], weights_NQT)
        for region, low, high in spans:
            if (low := max(low, start)) < (high := min(high, end)):
                inside = slice(low - start, high - start)
                pooled_NRT[heads, region, None, :keys].baddbmm_(inverse_NQ[:, None, inside], weights_NQT[:, inside])
        low, high = max(first, start), min(last, end)
        if low < high:
            rows = slice(low - start, high - start)
            kept_NQT = rows_NWT[heads, low - first : high - first, :keys]
            torch.mul(weights_NQT[:, rows], inverse_NQ[:, rows, None], out=kept_NQT)
        torch.sum(x_NQT.mul_(weights_NQT), -1, out=dots_NQ[heads, queries])
    rows_BHWT = rows_NWT.view(B, H, last - first, T)
    if call.real_BQ is not None:  # padded queries have an output, but are excluded from the sums
        rows_BHWT.masked_fill_(~call.real_BQ[:, None, first:last, None], 0.0)
    totals_BHQ, dots_BHQ = totals_NQ.view(B, H, Q), dots_NQ.view(B, H, Q)
    call.computed.update(pooled=pooled_NRT.view(B, H, -1, T), totals=totals_BHQ, dots=dots_BHQ)
    if first < last:
        call.computed["rows"] = rows_BHWT
    return output_BQHD


def in_range(totals: torch.Tensor) -> bool:
    """Whether sums of weights are far from overflow and underflow, so that the entropy keeps six digits."""
    low, high = torch.aminmax(totals)
    return float(low) > 1 / LARGEST and float(high) < LARGEST


def exponent_blocks(call: Call, size: int, space: Space) -> Iterator[tuple[int, int, int, torch.Tensor]]:
    """The scores of a call in base 2, with masks applied: (first of its B·H heads, start, end, exponents_NQT)."""
    B, K, Q, T, D = call.B, call.K, call.Q, call.T, call.q_BHQD.shape[-1]
    M, G, device = B * K, call.H // K, call.device
    rows_MGQD, keys_MTD, factor = call.q.reshape(M, G, Q, D), call.k.flatten(0, 1), call.scale * LOG2E
    seen_BT = key_exponents(call)
    mask = call.mask if seen_BT is None else None
    # A causal call in blocks of queries, so that few products of later keys are computed.
    queries = min(Q, CAUSAL) if call.causal else Q
    rows = max(1, min(M, size // (G * queries * T)))
    queries = queries if rows > 1 else max(1, min(queries, size // (G * T)))
    queries = -(-Q // -(-Q // queries))  # of even size
    rows = min(M, rows * torch.get_num_threads()) if device.type == "cpu" else rows  # as many for each core
    for low, high in row_blocks(M, K, rows, inside=mask is not None and mask.shape[:2] != (1, 1)):
        for start in range(0, Q, queries):
            end = min(Q, start + queries)
            keys = end if call.causal else T
            x = scratch(space, "exponents", (high - low, G * (end - start), keys), device)
            side = rows_MGQD[low:high, :, start:end].reshape(high - low, -1, D)
            keys_side = keys_MTD[low:high, :keys].transpose(1, 2)
            if seen_BT is None:
                torch.baddbmm(x, side, keys_side, beta=0, alpha=factor, out=x)
            else:
                seen_MT = seen_BT.expand(B, T)[torch.arange(low, high, device=device) // K, None, :keys]
                torch.baddbmm(seen_MT, side, keys_side, alpha=factor, out=x)
            x_NQT = x.view((high - low) * G, end - start, keys)
            if mask is not None:
                part = query_rows(mask, start, end)[low // K if mask.shape[0] > 1 else 0, ..., :keys]
                part = part if part.shape[0] == 1 else part[low % K * G : low % K * G + len(x_NQT)]
                exclude(x_NQT, part)
            if call.causal:
                x_NQT[..., start:].add_(torch.full((end - start, keys - start), NEVER, device=device).triu_(1))
            yield low * G, start, end, x_NQT


def exclude(exponents_NQT: torch.Tensor, mask_NQT: torch.Tensor) -> None:
    """Apply a mask, boolean or additive, to exponents."""
    if mask_NQT.dtype == torch.bool:
        exponents_NQT.masked_fill_(~mask_NQT, NEVER)
    else:
        exponents_NQT.add_((mask_NQT.float() * LOG2E).clamp_min(NEVER))


def key_exponents(call: Call) -> torch.Tensor | None:
    """What a mask that is the same for all queries and heads adds to the exponent of each key (B or 1, T)."""
    if call.mask is None or not call.same_for_all_queries or call.mask.shape[1] > 1:
        return None
    exponents_BT = torch.zeros(call.mask.shape[0], call.T, device=call.mask.device)
    exclude(exponents_BT, call.mask[:, 0, 0])
    return exponents_BT


def row_blocks(M: int, K: int, rows: int, inside: bool) -> Iterator[tuple[int, int]]:
    """Ranges of at most `rows` of the B·K rows: several rows of the batch, or a part of one; `inside`: never several.

    >>> list(row_blocks(6, 3, 4, False)), list(row_blocks(6, 3, 2, False))
    ([(0, 3), (3, 6)], [(0, 2), (2, 3), (3, 5), (5, 6)])
    """
    if rows >= K and not inside:
        rows -= rows % K
        yield from ((low, min(M, low + rows)) for low in range(0, M, rows))
        return
    parts = -(-K // rows)
    rows = -(-K // parts)
    for first in range(0, M, K):
        yield from ((low, min(first + K, low + rows)) for low in range(first, first + K, rows))
