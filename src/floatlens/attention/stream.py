"""The attention weights of a call, in blocks that stay in a core's cache: some heads, some queries, all their keys.

A weight is exp2(x) with x = (score - lse) · log2(e). Where lse, the log of a row's sum, is known from the kernel, it is
appended to the query as one more coordinate (and a 1 to the key), so that the matrix product returns x itself. The same
coordinate sets padded queries to 0, and another one the keys that no query may see. If lse is not known (another kernel,
capped or biased scores, a learned sink), the rows of a block are normalised directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from floatlens.attention.call import Call, query_rows

# Weights in a block: one megabyte of float32, which stays in a core's cache (measured: benchmarks/trace.py).
TILE = 1 << 18
LOG2E = math.log2(math.e)
NEVER = -1e30  # an exponent that gives weight 0, and 0 · NEVER is still 0, as 0 · -inf is not
TINY = torch.finfo(torch.float32).tiny
CAUSAL = 128  # queries per block of a causal call
FEW = 8  # with fewer queries per row, building coordinates for the keys costs more than it saves


class Workspace:
    """Named buffers that grow to the largest block and are then reused.

    Allocating a megabyte per block would cost more than the arithmetic on it, because its pages are mapped and cleared.

    >>> space = Workspace()
    >>> a = space.take("scores", (2, 3), torch.device("cpu")); b = space.take("scores", (3, 2), torch.device("cpu"))
    >>> a.data_ptr() == b.data_ptr()
    True
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.device], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        """A float32 tensor of the given shape with arbitrary content."""
        size = math.prod(shape)
        buffer = self.buffers.get((name, device))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, device=device)
            self.buffers[name, device] = buffer
        return buffer[:size].view(shape)

    def joined(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        """Tensors of one shape, concatenated along the first dim in float32; a single one is returned unchanged."""
        if len(parts) == 1:
            return parts[0]
        whole = self.take(name, (len(parts) * parts[0].shape[0], *parts[0].shape[1:]), parts[0].device)
        if all(part.dtype == torch.float32 for part in parts):
            return torch.cat(parts, out=whole)
        for place, part in zip(whole.split(parts[0].shape[0]), parts, strict=True):
            place.copy_(part)
        return whole


@dataclass(frozen=True)
class Block:
    """Heads first..first+N of the call's B·H, queries start..end, and their first T keys.

    exponents_NQT   scores in base 2 with masks applied; `normalised`: minus the log of each row's sum
    weights_NQT     a buffer for exp2 of the exponents; both are overwritten by the next block
    """

    first: int
    start: int
    end: int
    exponents_NQT: torch.Tensor
    weights_NQT: torch.Tensor
    normalised: bool = True


@dataclass(frozen=True)
class Tile:
    """Queries start..end of a call with all heads, and the keys that they may see: T here is the number of those keys.

    weights_BHQT  softmax of the scores, 0 in rows of padding; overwritten by the next tile: keep sums or copies
    """

    call: Call
    start: int
    end: int
    weights_BHQT: torch.Tensor

    @classmethod
    def of(cls, call: Call, block: Block) -> Tile:
        """Make a tile from a block that has all heads."""
        shape = (call.B, call.H, block.end - block.start, -1)
        return cls(call, block.start, block.end, block.weights_NQT.view(shape))

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
        return self.call.scores(self.start, self.end, self.T)

    @property
    def real_BQ(self) -> torch.Tensor | None:
        """Queries of the tile that are not padding; None when all are real."""
        real = self.call.real_BQ
        return None if real is None else real[:, self.start : self.end]


def attention_rows(call: Call, start: int, end: int) -> torch.Tensor:
    """Attention weights (B, H, end-start, T) of rows start..end (read-only); rows of padding are 0."""
    if (known := call.rows(start, end)) is not None:
        return known
    scores_BHQT = call.scores(start, end)
    if call.sinks_H is not None:  # the share of a learned sink is left out
        sinks = call.sinks_H.float().view(1, -1, 1, 1).expand(*scores_BHQT.shape[:3], 1)
        weights = torch.cat([scores_BHQT, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores_BHQT.softmax(-1)
    return weights if call.real_BQ is None else weights.masked_fill_(~call.real_BQ[:, None, start:end, None], 0.0)


def stream_weights(call: Call, size: int, space: Workspace, *, whole: bool = False) -> Iterator[Block]:
    """Stream the weights once: sum them over regions, compute their entropy, and yield each block.

    A block has at most `size` weights. `whole`: a block has all heads.
    """
    R, device = call.member_BRQ.shape[1], call.q_BHQD.device
    pooled_NRT = torch.zeros(call.B * call.H, R, call.T, device=device)
    spread_N = torch.zeros(call.B * call.H, device=device)
    member_NRQ = call.member_BRQ[:, None].expand(-1, call.H, -1, -1).flatten(0, 1)
    blocks = own_blocks(call, size) if call.has_own_weights else weight_blocks(call, size, space, whole)
    for block in blocks:
        N, _, T = block.weights_NQT.shape
        heads, queries = slice(block.first, block.first + N), slice(block.start, block.end)
        pooled_NRT[heads, :, :T].baddbmm_(member_NRQ[heads, :, queries], block.weights_NQT)
        if call.sinks_H is None:
            spread_N[heads] -= block.exponents_NQT.mul_(block.weights_NQT).sum((1, 2))
        else:
            spread_N[heads] += _given_a_position(block)
        yield block
    B, H = call.B, call.H
    call.keep_sums(pooled_NRT.view(B, H, R, call.T), spread_N.view(B, H) / LOG2E)


def _given_a_position(block: Block) -> torch.Tensor:
    """Entropy in bits of the distribution over positions, given that a position is attended and not the learned sink."""
    share_NQ = block.weights_NQT.sum(-1)
    bits_NQ = -(block.weights_NQT * block.exponents_NQT).sum(-1)
    kept = share_NQ > 0
    return torch.where(kept, bits_NQ / share_NQ.clamp_min(1e-30) + share_NQ.clamp_min(1e-30).log2(), 0.0).sum(-1)


def sum_rows(call: Call) -> None:
    """Sum kept weights over regions, and compute their entropy."""
    rows_BHQT = call.rows(0, call.Q)
    assert rows_BHQT is not None
    pooled_BHRT = torch.matmul(call.member_BRQ[:, None], rows_BHQT)
    bits_BH = (rows_BHQT.clamp_min(TINY).log2_().mul_(rows_BHQT)).sum((2, 3))
    call.keep_sums(pooled_BHRT, bits_BH / -LOG2E)


def own_blocks(call: Call, size: int) -> Iterator[Block]:
    """The weights of a layer that computes them itself, in tiles of rows, all heads at once."""
    queries = max(1, size // (call.B * call.H * call.T))
    for start in range(0, call.Q, queries):
        end = min(call.Q, start + queries)
        weights_NQT = attention_rows(call, start, end).flatten(0, 1)
        yield Block(0, start, end, weights_NQT.clamp_min(TINY).log2(), weights_NQT)


def weight_blocks(call: Call, size: int, space: Workspace, whole: bool) -> Iterator[Block]:
    """The softmax weights of a call in blocks."""
    for block in exponent_blocks(call, size, space, whole=whole):
        if block.normalised:
            torch.exp2(block.exponents_NQT, out=block.weights_NQT)
        else:
            _normalise(call, block)
        yield block


def exponent_blocks(call: Call, size: int, space: Workspace, *, whole: bool = False) -> Iterator[Block]:
    """The blocks of a call before the exponential."""
    product = Product(call, space)
    M, G, Q, C = product.rows_MGQC.shape
    T, rows, queries, inside, device = call.T, M, Q, False, call.q_BHQD.device
    if whole:
        queries = max(1, size // (M * G * T))
    else:
        # A causal call in blocks of queries, so that few products of later keys are computed.
        queries = min(Q, CAUSAL) if call.causal else Q
        rows = max(1, min(M, size // (G * queries * T)))
        queries = queries if rows > 1 else max(1, min(queries, size // (G * T)))
        queries = -(-Q // -(-Q // queries))  # of even size
        inside = product.mask and call.mask is not None and call.mask.shape[:2] != (1, 1)  # a block has one mask
    for low, high in _row_blocks(M, call.K, rows, inside):
        for start in range(0, Q, queries):
            end = min(Q, start + queries)
            keys = end if call.causal else T
            exponents = space.take("exponents", (high - low, G * (end - start), keys), device)
            side = product.rows_MGQC[low:high, :, start:end].reshape(high - low, -1, C)
            keys_side = product.keys_MTC[low:high, :keys].transpose(1, 2)
            torch.baddbmm(exponents, side, keys_side, beta=0, alpha=product.factor, out=exponents)
            exponents_NQT = exponents.view((high - low) * G, end - start, keys)
            _adjust(call, exponents_NQT, low, high, start, end, product.mask)
            weights_NQT = space.take("weights", tuple(exponents_NQT.shape), device)
            yield Block(low * G, start, end, exponents_NQT, weights_NQT, product.lse)


def _row_blocks(M: int, K: int, rows: int, inside: bool) -> Iterator[tuple[int, int]]:
    """Ranges of at most `rows` of the B·K rows: several rows of the batch, or a part of one; `inside`: never several.

    >>> list(_row_blocks(6, 3, 4, False)), list(_row_blocks(6, 3, 2, False))
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


class Product:
    """Queries and keys with the appended coordinates: rows_MGQC (M = B·K) and keys_MTC; exponents are `factor` · product."""

    def __init__(self, call: Call, space: Workspace) -> None:
        B, K, Q, T, D = call.B, call.K, call.Q, call.T, call.q_BHQD.shape[-1]
        G = call.H // K
        scored = call.softcap is not None or call.bias is not None or call.sinks_H is not None
        many = Q * G >= FEW and not scored
        self.lse = many and call.lse_BHQ is not None
        seen = key_exponents(call) if many else None
        self.mask = call.mask is not None and seen is None
        C = D + int(self.lse) + int(seen is not None)
        device = call.q_BHQD.device
        if C == D:
            self.rows_MGQC, self.factor = call.q.reshape(B * K, G, Q, D), call.scaling * LOG2E
            self.keys_MTC = call.k.flatten(0, 1)
            return
        self.factor = 1.0
        rows = space.take("rows", (B, K, G, Q, C), device)
        torch.mul(call.q_BHQD.unflatten(1, (K, G)), call.scaling * LOG2E, out=rows[..., :D])
        keys = space.take("keys", (B, K, T, C), device)
        keys[..., :D] = call.k_BKTD
        if self.lse:
            assert call.lse_BHQ is not None
            silent = call.lse_BHQ.unflatten(1, (K, G)) * -LOG2E
            if call.real_BQ is not None:
                silent = silent.masked_fill_(~call.real_BQ[:, None, None], NEVER)
            rows[..., D] = silent
            keys[..., D] = 1.0
        if seen is not None:
            rows[..., -1] = 1.0
            keys.view(len(call.layers), -1, K, T, C)[..., -1] = seen[:, None]
        self.rows_MGQC, self.keys_MTC = rows.flatten(0, 1), keys.flatten(0, 1)


def key_exponents(call: Call) -> torch.Tensor | None:
    """What a mask that is the same for all queries and heads adds to the exponent of each key (B of one layer, T)."""
    if call.mask is None or not call.same_for_all_queries or call.mask.shape[1] > 1:
        return None
    mask = call.mask[:, 0, 0]
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, NEVER)
    return (mask.float() * LOG2E).clamp_min(NEVER)


def _adjust(call: Call, exponents_NQT: torch.Tensor, low: int, high: int, start: int, end: int, masked: bool) -> None:
    """Apply what comes between the product and the softmax: soft cap, bias, masks."""
    T, G = exponents_NQT.shape[-1], call.H // call.K
    if call.softcap is not None:
        cap = call.softcap * LOG2E
        exponents_NQT.div_(cap).tanh_().mul_(cap)
    for extra in (call.bias, call.mask if masked else None):
        if extra is not None:
            part = _of_heads(query_rows(extra, start, end)[..., :T], call, low * G, high * G)
            if part.dtype == torch.bool:
                exponents_NQT.masked_fill_(~part, NEVER)
            else:
                exponents_NQT.add_((part.float() * LOG2E).clamp_min(NEVER))
    if call.causal:
        later = torch.full((end - start, T - start), NEVER, device=exponents_NQT.device).triu_(1)
        exponents_NQT[..., start:].add_(later)


def _of_heads(extra: torch.Tensor, call: Call, first: int, last: int) -> torch.Tensor:
    """The part of a mask or bias that belongs to heads first..last of the B·H, broadcasting to (N, Q, T)."""
    if extra.shape[0] == 1 and extra.shape[1] == 1:
        return extra[0]
    B, H = call.B // len(call.layers), call.H
    if last - first <= H - first % H:
        extra = extra[first // H % B if extra.shape[0] > 1 else 0]
        return extra if extra.shape[0] == 1 else extra[first % H : first % H + last - first]
    return extra.expand(B, H, -1, -1).flatten(0, 1).repeat(len(call.layers), 1, 1)[first:last]


def _normalise(call: Call, block: Block) -> None:
    """Softmax in base 2 of a block's rows: exponents become those of the weights, rows of padding become 0."""
    exponents_NQT, weights_NQT, N = block.exponents_NQT, block.weights_NQT, block.exponents_NQT.shape[0]
    heads = slice(block.first, block.first + N)
    highest = exponents_NQT.amax(-1, keepdim=True)
    sink = None
    if call.sinks_H is not None:
        sink = (call.sinks_H.float() * LOG2E).repeat(call.B)[heads, None, None]
        highest = highest.maximum(sink)
    exponents_NQT.sub_(highest)
    total = torch.exp2(exponents_NQT, out=weights_NQT).sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp2(sink - highest)
    exponents_NQT.sub_(total.log2())
    weights_NQT.div_(total)
    if call.real_BQ is not None:
        rows = torch.arange(heads.start, heads.stop, device=exponents_NQT.device) // call.H
        weights_NQT.masked_fill_(~call.real_BQ[rows, block.start : block.end, None], 0.0)
