"""Sums down the columns of attention on a GPU, in one pass that never holds the T×T matrix.

`column_sums` returns what the default statistics need of an attention call: the weights summed over the queries of each
region, the entropy of the rows, and the factors of the scores. `available` returns whether a device can run it; on other
devices the stream path computes the same numbers. Scores with a soft cap, a bias or a learned sink, and masks that are
not an `IntervalMask`, are also computed by the stream path.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from floatlens.attention.call import Call
from floatlens.attention.kernels.interval_mask import IntervalMask, interval_mask

LOG2E = math.log2(math.e)
TYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_HEAD = 256
MOST_REGIONS = 64  # the sums per region are held in registers
FULL = IntervalMask()


class Regions:
    """Region index of each query of a batch. Make it once per step: all layers share it.

    The weights of a tile of queries that lies inside one region, as most tiles of a long text do, are summed directly; only
    the other tiles need a mask per query.

    Parameters
    ----------
    region_BQ : Tensor
        Region index of each query (int), below `count`; a query with a negative index belongs to none.
    count : int
        Number of regions R, at most 64.
    """

    def __init__(self, region_BQ: torch.Tensor, count: int) -> None:
        self.region_BQ = region_BQ.to(torch.int32).contiguous()
        self.count = count
        self._tiles: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tiles(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Order the tiles of `size` queries, those inside one region first: order (B, tiles) and rank (B, tiles + 1).

        Both kinds keep their order. `rank[b, t]` is the number of tiles before t that lie inside one region.

        >>> order, rank = Regions(torch.tensor([[0, 0, 0, 1, 1, 1]]), 2).tiles(2)
        >>> order.tolist(), rank.tolist()
        ([[0, 2, 1]], [[0, 1, 1, 2]])
        """
        if size not in self._tiles:
            B, Q = self.region_BQ.shape
            padded = torch.nn.functional.pad(self.region_BQ, (0, -Q % size), value=-1).view(B, -1, size)
            mixed = (padded != padded[..., :1]).any(-1)
            rank = torch.nn.functional.pad((~mixed).cumsum(1), (1, 0))
            self._tiles[size] = mixed.int().argsort(dim=1, stable=True).int(), rank.int()
        return self._tiles[size]


@dataclass(frozen=True)
class ColumnSums:
    """Sums over the queries of one attention call; padded queries are not counted.

    Shapes: B batch, H query heads, Q queries, T keys, R regions. Everything is float32, except `count_BT` (int32).

    pooled_BHRT    attention weights summed over the queries of each region; summed over R as well: received attention
    spread_BH      entropy of the attention rows in nats, summed over the queries
    qk_BHT         q·k, unscaled, summed over the queries that may see the key
    qk_norm_BHT    |q||k|, summed over the same queries
    qk_cos_BHT     cosine of q and k, summed over the same queries; 0 for a zero vector
    count_BT       number of those queries: divide the three sums by it for column means
    lse_BHQ        natural log of each row's sum of exp(score), as passed in or computed by the first pass
    """

    pooled_BHRT: torch.Tensor
    spread_BH: torch.Tensor
    qk_BHT: torch.Tensor
    qk_norm_BHT: torch.Tensor
    qk_cos_BHT: torch.Tensor
    count_BT: torch.Tensor
    lse_BHQ: torch.Tensor


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of one launch: queries and keys per tile, warps per program, tiles of queries loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


def available(device: torch.device | str) -> bool:
    """True if `column_sums` runs on the device: an NVIDIA GPU of compute capability 8.0 or later, with Triton installed.

    A CPU runs it only in Triton's interpreter (`TRITON_INTERPRET=1` before Triton is imported), for tests.

    >>> available("meta")
    False
    """
    device = torch.device(device)
    if device.type not in ("cuda", "cpu") or find_spec("triton") is None:
        return False
    if device.type == "cpu":
        return is_interpreted()
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def is_interpreted() -> bool:
    """True if the kernels run in Triton's interpreter instead of being compiled."""
    from triton.runtime.interpreter import InterpretedFunction

    from floatlens.attention.kernels import triton_kernels

    return isinstance(triton_kernels.column_kernel, InterpretedFunction)


def choose_tiles(dtype: torch.dtype, head_dim: int, queries: int, capability: tuple[int, int] = (8, 0)) -> Tiles:
    """Tile sizes for a device of the given compute capability, chosen so that the main loop keeps its sums in registers.

    They come from compiling the kernels, not from measurements: see README.md.

    >>> choose_tiles(torch.bfloat16, head_dim=128, queries=1024)
    Tiles(queries=64, keys=128, warps=4, stages=3)
    """
    few = queries <= 16  # cached decoding
    if dtype == torch.float32:
        return Tiles(16 if few else 32, 32, 4, 2)
    if head_dim > 128:
        return Tiles(16 if few else 32, 64, 4, 2)
    return Tiles(16 if few else 64, 128, 8 if capability >= (9, 0) else 4, 3)


@torch.no_grad()
def column_sums(
    q_BHQD: torch.Tensor,
    k_BKTD: torch.Tensor,
    *,
    scaling: float | None = None,
    mask: IntervalMask = FULL,
    start_B: torch.Tensor | None = None,
    regions: Regions | None = None,
    lse_BHQ: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> ColumnSums:
    """Sum attention weights, their entropy and the factors of their scores over the queries of one call.

    The caller checks what the kernels support: see `is_supported`.

    Parameters
    ----------
    q_BHQD, k_BKTD : Tensor
        Queries and keys after RoPE, of one dtype: bfloat16, float16 or float32. Query head h uses key head `h // (H / K)`.
    scaling : float or None
        Factor of the scores; None: `D ** -0.5`.
    mask : IntervalMask
        Which keys a query may see.
    start_B : Tensor or None
        Position of the first key of each row that is not padding (int). Queries before it are padding as well.
    regions : Regions or None
        Regions of the queries, made once per step; None: all queries are region 0.
    lse_BHQ : Tensor or None
        Natural log of each row's sum of exp(score), where the forward kernel returned it (FlashAttention does). None: a
        first pass computes it, at about the cost of the main pass.
    tiles : Tiles or None
        Tile sizes; None: `choose_tiles`.
    """
    from floatlens.attention.kernels import triton_kernels as kernels

    B, H, Q, D = q_BHQD.shape
    K, T = k_BKTD.shape[1:3]
    device = q_BHQD.device
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHQD, k_BKTD))
    start = torch.zeros(B, dtype=torch.int32, device=device) if start_B is None else _as_int32(start_B, device)
    sizes = tiles or choose_tiles(q.dtype, D, Q, _capability(device))
    query_tiles, key_tiles = -(-Q // sizes.queries), -(-T // sizes.keys)
    padded = max(16, 1 << (D - 1).bit_length())  # tensor cores need at least 16
    scale2 = (D**-0.5 if scaling is None else scaling) * LOG2E
    strides = (*q.stride()[:3], *k.stride()[:3])
    limits = (mask.first_query(Q, T), mask.back, mask.ahead, mask.block)
    widen = q.dtype == torch.bfloat16 and is_interpreted()
    sides = {"D": D, "DP": padded, "BM": sizes.queries}
    launch = {"num_warps": sizes.warps, "num_stages": sizes.stages, "enable_fp_fusion": True}

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if lse_BHQ is None:
            # Here the tile of queries stays on the chip, so it is the larger one if there are enough queries.
            stay, pass_by = sorted((sizes.queries, sizes.keys), reverse=sizes.queries < Q)
            lse = empty(B, H, Q)
            kernels.logsumexp_kernel[(-(-Q // stay), B * H)](
                q, k, start, lse, *strides, H, H // K, Q, T, *limits, scale2,
                D=D, DP=padded, BM=stay, BN=pass_by, WIDEN=widen, **launch,
            )  # fmt: skip
        else:
            lse = lse_BHQ.float().contiguous()
        norm, inverse, tile_norm = empty(B, H, Q), empty(B, H, Q), empty(B, H, query_tiles)
        tile_q, tile_unit = empty(B, H, query_tiles, padded), empty(B, H, query_tiles, padded)
        kernels.query_kernel[(query_tiles, B * H)](
            q, norm, inverse, tile_q, tile_unit, tile_norm, *strides[:3], H, Q, **sides, enable_fp_fusion=True
        )
        regions = regions or Regions(torch.zeros(B, Q, device=device), 1)
        pooled, spread = empty(B, H, regions.count, T), empty(B, H, key_tiles)
        qk, qk_norm, qk_cos = empty(B, H, T), empty(B, H, T), empty(B, H, T)
        count = torch.empty(B, T, dtype=torch.int32, device=device)
        kernels.column_kernel[(key_tiles, B * H)](
            q, k, start, lse, regions.region_BQ, *regions.tiles(sizes.queries),
            norm, inverse, tile_q, tile_unit, tile_norm, pooled, spread, qk, qk_norm, qk_cos, count,
            *strides, H, H // K, Q, T, regions.count, *limits, scale2, **sides, BN=sizes.keys,
            RP=max(16, 1 << (regions.count - 1).bit_length()), WIDEN=widen, **launch,
        )  # fmt: skip
    return ColumnSums(pooled, spread.sum(-1), qk, qk_norm, qk_cos, count, lse)


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 0)


def _as_int32(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return x.to(device=device, dtype=torch.int32).contiguous()


class KernelSums:
    """Runs the kernel on calls. Masks and regions are the same for all layers of a step, so they are converted once."""

    def __init__(self) -> None:
        self.masks: dict[object, tuple[object, tuple[IntervalMask, torch.Tensor | None] | None]] = {}
        self.regions: dict[object, tuple[object, Regions]] = {}

    def begin(self) -> None:
        """Forget the masks and regions of the last pass."""
        self.masks.clear()
        self.regions.clear()

    def take(self, call: Call) -> bool:
        """Compute the sums that the default statistics need and store them in the call; False if it is not supported."""
        if not is_supported(call):
            return False
        # Each entry keeps its tensor alive, so that no other tensor can get the same address.
        mask, real, rows = call.mask, call.layout.real_BN, (call.first_query, call.Q, call.T, call.length)
        key = (None if mask is None else mask.data_ptr(), id(real), call.causal, rows)
        if key not in self.masks:
            self.masks[key] = ((mask, real), interval_mask(call))
        found = self.masks[key][1]
        if found is None:
            return False
        place = (id(call.layout), rows[:2])
        if place not in self.regions:
            region_BQ = call.layout.region_BN[:, call.query_positions]
            self.regions[place] = (call.layout, Regions(region_BQ, call.layout.member_BRN.shape[1]))
        interval, start_B = found
        sums = column_sums(
            call.q_BHQD,
            call.k_BKTD,
            scaling=call.scaling,
            mask=interval,
            start_B=start_B,
            regions=self.regions[place][1],
            lse_BHQ=call.lse_BHQ,
        )
        call.keep_sums(sums.pooled_BHRT, sums.spread_BH)
        # Under the names of the functions that compute them otherwise (statistics/geometry.py).
        call.computed["score_sums"] = torch.stack([sums.qk_BHT, sums.qk_cos_BHT], 2)
        call.computed["norm_sums"] = sums.qk_norm_BHT[:, :, None]
        call.computed["visible_count"] = sums.count_BT[:, None].expand(-1, call.H, -1).float()
        return True


def is_supported(call: Call) -> bool:
    """Whether the kernel supports the device, dtypes and sizes of a call; masks are checked separately."""
    q, k = call.q_BHQD, call.k_BKTD
    if call.has_own_weights or call.softcap is not None or call.bias is not None or call.sinks_H is not None:
        return False
    if q.dtype != k.dtype or q.dtype not in TYPES or q.shape[-1] > LARGEST_HEAD:
        return False
    return call.layout.member_BRN.shape[1] <= MOST_REGIONS and available(q.device)
