"""Sums down the columns of attention on a GPU, in one pass that never holds the T×T matrix (`implementation="kernel"`).

The Triton kernel supports full and causal attention with left padding; `take` leaves every other call to the stream path.
It has not run on a GPU yet: it is tested in Triton's interpreter and compiled for sm80 and sm90 (benchmarks/kernel_cost).
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec

import torch

from floatlens.attention.call import Call, visible
from floatlens.attention.stream import FEW, LOG2E
from floatlens.errors import FloatLensError

TYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_HEAD = 256
MOST_REGIONS = 64  # the sums per region are held in registers
Tiles = tuple[int, int, int, int]  # queries and keys per tile, warps per program, tiles of queries loaded ahead


def available(device: torch.device | str) -> bool:
    """Whether the kernel runs on a device: an NVIDIA GPU of compute capability 8.0 or later; a CPU in Triton's interpreter.

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
    """Whether Triton runs the kernels in its interpreter, for tests: TRITON_INTERPRET=1 was set before its import."""
    from triton.runtime.interpreter import InterpretedFunction

    from floatlens.attention import triton_kernels

    return isinstance(triton_kernels.column_kernel, InterpretedFunction)


def take(call: Call, only_sums: bool) -> bool:
    """Sum the weights of a call with the kernel and keep the sums in the call; False if the stream path has to do it.

    `only_sums`: no statistic needs the weights themselves. With few queries the stream path is cheaper.
    """
    q, k, regions = call.q_BHQD, call.k_BKTD, call.layout.member_BRN.shape[1]
    if not available(q.device):
        raise FloatLensError(
            f"implementation 'kernel' needs Triton and an NVIDIA GPU of compute capability 8.0 or later, but the model "
            f"is on {q.device}; use 'stream'"
        )
    if not only_sums or call.Q < FEW or not call.is_plain:
        return False
    if q.dtype != k.dtype or q.dtype not in TYPES or q.shape[-1] > LARGEST_HEAD or regions > MOST_REGIONS:
        return False
    if (mask := plain_mask(call)) is None:
        return False
    causal, start_B = mask
    region_BQ, offset = call.layout.region_BN[:, call.query_positions], call.query_keys.start
    pooled, spread, _ = column_sums(
        q, k, region_BQ, regions, scaling=call.scale, causal=causal, offset=offset, start_B=start_B, lse_BHQ=call.lse_BHQ
    )  # fmt: skip
    call.computed.update(pooled=pooled, spread=spread)
    return True


def plain_mask(call: Call) -> tuple[bool, torch.Tensor] | None:
    """Whether a call is causal, and the first real key of each row (B,); None for any other mask."""
    offset, Q, T, device = call.query_keys.start, call.Q, call.T, call.device
    start_B = torch.zeros(call.B, dtype=torch.int32, device=device)
    if call.layout.real_BN is not None:
        start_B = (~call.layout.real_BN[:, call.first_key : call.length]).sum(1).int()
    if call.mask is None:
        return None if bool(start_B.any()) else (call.causal, start_B)  # None: padding that queries may see
    seen = visible(call.mask)
    if call.causal or seen.shape[1] > 1 or (seen is not call.mask and bool((seen & (call.mask != 0)).any())):
        return None
    keys, queries = torch.arange(T, device=device), torch.arange(offset, offset + Q, device=device)[:, None]
    padded_BQ1 = (queries < start_B[:, None, None]) if call.real_BQ is None else ~call.real_BQ[..., None]
    for causal in (False, True):
        wanted_BQT = (keys >= start_B[:, None, None]) & ((keys <= queries) | (not causal))
        if bool(((seen[:, 0] == wanted_BQT) | padded_BQ1).all()):
            return causal, start_B
    return None


def choose_tiles(dtype: torch.dtype, head_dim: int, queries: int, capability: tuple[int, int] = (8, 0)) -> Tiles:
    """Tile sizes with which the compiled main loop keeps its sums in registers (benchmarks/kernel_compile).

    >>> choose_tiles(torch.bfloat16, head_dim=128, queries=1024)
    (64, 128, 4, 3)
    """
    few = queries <= 16  # cached decoding
    if dtype == torch.float32:
        return 16 if few else 32, 32, 4, 2
    if head_dim > 128:
        return 16 if few else 32, 64, 4, 2
    return 16 if few else 64, 128, 8 if capability >= (9, 0) else 4, 3


@torch.no_grad()
def column_sums(
    q_BHQD: torch.Tensor,
    k_BKTD: torch.Tensor,
    region_BQ: torch.Tensor,
    regions: int,
    *,
    scaling: float,
    causal: bool,
    offset: int,
    start_B: torch.Tensor,
    lse_BHQ: torch.Tensor | None = None,
    tiles: Tiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention weights summed over the queries of each region (B, H, R, T), their rows' entropy (B, H), and lse_BHQ.

    Query i is at key `offset + i`. Queries and keys before `start_B`, and queries with a negative region, are padding. If
    `lse_BHQ`, the natural log of each row's sum, is not given, a first pass computes it at about the cost of the main one.
    """
    from floatlens.attention import triton_kernels as kernels

    B, H, Q, D = q_BHQD.shape
    K, T = k_BKTD.shape[1:3]
    device = q_BHQD.device
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHQD, k_BKTD))
    start, region = (x.to(torch.int32).contiguous() for x in (start_B, region_BQ))
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 0)
    queries, keys, warps, stages = tiles or choose_tiles(q.dtype, D, Q, capability)
    padded = max(16, 1 << (D - 1).bit_length())  # tensor cores need at least 16
    sizes = (*q.stride()[:3], *k.stride()[:3], H, H // K, Q, T)
    widen = q.dtype == torch.bfloat16 and is_interpreted()
    options = {
        "D": D, "DP": padded, "CAUSAL": causal, "WIDEN": widen,
        "num_warps": warps, "num_stages": stages, "enable_fp_fusion": True,
    }  # fmt: skip
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if lse_BHQ is None:
            # Here the tile of queries stays on the chip, so it is the larger one if there are enough queries.
            stay, pass_by = sorted((queries, keys), reverse=queries < Q)
            lse = torch.empty(B, H, Q, device=device)
            kernels.logsumexp_kernel[(-(-Q // stay), B * H)](
                q, k, start, lse, *sizes, offset, scaling * LOG2E, BM=stay, BN=pass_by, **options
            )
        else:
            lse = lse_BHQ.float().contiguous()
        pooled = torch.empty(B, H, regions, T, device=device)
        spread = torch.empty(B, H, -(-T // keys), device=device)
        kernels.column_kernel[(-(-T // keys), B * H)](
            q, k, start, lse, region, pooled, spread, *sizes, offset, scaling * LOG2E, regions,
            BM=queries, BN=keys, RP=max(16, 1 << (regions - 1).bit_length()), **options,
        )  # fmt: skip
    return pooled, spread.sum(-1), lse
