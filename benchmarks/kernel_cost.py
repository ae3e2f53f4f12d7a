"""Calculated cost of the attention kernel: FLOPs, memory traffic and time, compared with the forward pass of LLaDA-8B.

    python -m benchmarks.kernel_cost

Nothing here has run on a GPU. The FLOPs and bytes follow from the shapes. The time follows from the instructions of the
compiled main loop (`python -m benchmarks.kernel_compile`) and from published data of the GPUs; the README of
attention/kernels explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

LAYERS, HEADS, HEAD_DIM, WIDTH, MLP, VOCABULARY, REGIONS = 32, 32, 128, 4096, 12288, 126_464, 10
KEY_TILE, QUERY_TILE = 128, 64
MIXED_TILES = 12  # tiles of queries that hold more than one region: about one per passage, and some at the ends
BETWEEN_KERNELS = 3e-6  # seconds from the end of a kernel to the start of the next
KERNELS = 3  # query sums, column sums, the sum of the entropies' parts
# FlashAttention-2 reaches 73 % of an A100's peak at best: beside 2,048 cycles of matrix products for a tile of 128 × 64,
# some 750 of its about 1,250 other cycles are not hidden behind them. Its loop has the parts that this one has.
EXPOSED = 0.6
REACHED = 0.8  # share of the memory's bandwidth that simple kernels reach
# Bytes that the operations between the products move per token and layer in transformers' own code, which does not fuse
# them: two RMS norms in float32 (36 bytes per element), RoPE of queries and keys (20), two residual sums (6), SwiGLU (10),
# and the transposed copy of the attention's output (4).
ELEMENTWISE_BYTES = WIDTH * (2 * 36 + 2 * 20 + 2 * 6 + 4) + MLP * 10


@dataclass(frozen=True)
class Loop:
    """Instructions of one warp for a tile of 128 × 64, by pipe; matrix products in FLOPs per query and key."""

    products: int
    exp2: int
    float32: int
    integer: int


SCORES = 2 * HEAD_DIM
BY_REGION = 2 * 2 * 16  # both halves of a weight, with 16 columns


@dataclass(frozen=True)
class GPU:
    """Published data of a GPU (dense bfloat16), rates assumed of the forward pass, and the kernels' compiled loops."""

    name: str
    peak: float  # FLOP per second
    bandwidth: float  # bytes per second
    processors: int
    clock: float  # boost
    float32_lanes: int  # per multiprocessor
    linear: float  # share of the peak that the linear layers reach
    attention: float  # share of the peak that the model's own attention reaches
    warps: int  # of a program of the kernels
    alone: Loop  # tiles inside one region
    mixed: Loop  # tiles of several regions
    first: Loop  # the pass that finds the log of the rows' sums


EXP2_LANES, INTEGER_LANES = 16, 64  # both GPUs
A100 = GPU(
    "A100 SXM", 312e12, 2.04e12, 108, 1.41e9, 64, linear=0.80, attention=0.70, warps=4,
    alone=Loop(SCORES, 64, 290, 61), mixed=Loop(SCORES + BY_REGION, 64, 248, 208), first=Loop(SCORES, 72, 312, 47),
)  # fmt: skip
H100 = GPU(
    "H100 SXM", 989e12, 3.35e12, 132, 1.83e9, 128, linear=0.70, attention=0.50, warps=8,
    alone=Loop(SCORES, 32, 146, 81), mixed=Loop(SCORES + BY_REGION, 32, 132, 109), first=Loop(SCORES, 34, 138, 22),
)  # fmt: skip


def forward_flops(length: int) -> tuple[float, float]:
    """FLOPs of one forward pass: linear layers, attention."""
    weights = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * MLP) + VOCABULARY * WIDTH
    return 2 * length * weights, LAYERS * 4 * length**2 * WIDTH


def mixed_share(length: int) -> float:
    """Share of the tiles of queries that hold more than one region."""
    return min(1.0, MIXED_TILES * QUERY_TILE / length)


def kernel_flops(length: int) -> tuple[float, float]:
    """FLOPs of the main pass on the tensor cores: scores; sums by region."""
    pairs = LAYERS * HEADS * length**2
    return pairs * SCORES, pairs * BY_REGION * mixed_share(length)


def kernel_bytes(length: int) -> tuple[float, float]:
    """Bytes of one layer: to and from memory if each tensor is read once; from the L2 cache (queries, per key tile)."""
    tensor, row = length * WIDTH * 2, length * HEADS * 4
    tiles = ceil(length / QUERY_TILE) * HEADS * (2 * HEAD_DIM + 1) * 4
    read = 3 * tensor + row  # queries twice (norms and sums, then the scores), keys once, lse
    written = row * (REGIONS + 3) + 2 * row + tiles  # regions and three factors; norms of the queries; sums per tile
    return read + written, ceil(length / KEY_TILE) * (tensor + 2 * row + tiles)


def cycles(gpu: GPU, loop: Loop) -> dict[str, float]:
    """Cycles that each pipe of a multiprocessor is busy with a tile of 128 × 64."""
    threads = gpu.warps * 32
    return {
        "products": KEY_TILE * QUERY_TILE * loop.products / (gpu.peak / gpu.processors / gpu.clock),
        "exp2": loop.exp2 * threads / EXP2_LANES,
        "float32": loop.float32 * threads / gpu.float32_lanes,
        "integer": loop.integer * threads / INTEGER_LANES,
    }


def pass_seconds(gpu: GPU, loop: Loop, length: int, exposed: float) -> float:
    """Seconds of one pass over all layers if this share of the other work is not hidden behind matrix products.

    With nothing exposed, the busiest pipe counts. Programs go to multiprocessors in rounds, and the last one counts in full.
    """
    pipes = cycles(gpu, loop)
    others = sum(pipes.values()) - pipes["products"]
    per_tile = max(*pipes.values(), pipes["products"] + exposed * others)
    rounds = ceil(ceil(length / KEY_TILE) * HEADS / gpu.processors)
    return LAYERS * rounds * ceil(length / QUERY_TILE) * per_tile / gpu.clock


def observation_seconds(gpu: GPU, length: int, exposed: float, lse_given: bool) -> float:
    """Seconds that observation adds to a forward pass: the main pass, the query sums and the gaps between kernels."""
    mixed = mixed_share(length)
    seconds = mixed * pass_seconds(gpu, gpu.mixed, length, exposed)
    seconds += (1 - mixed) * pass_seconds(gpu, gpu.alone, length, exposed)
    if not lse_given:
        seconds += pass_seconds(gpu, gpu.first, length, exposed)
    queries = length * WIDTH * 2 / (gpu.bandwidth * REACHED)
    return seconds + LAYERS * (queries + (KERNELS + (not lse_given)) * BETWEEN_KERNELS)


def forward_seconds(gpu: GPU, length: int) -> tuple[float, float]:
    """Seconds of the forward pass: matrix products; operations between them."""
    linear, attention = forward_flops(length)
    between = LAYERS * length * ELEMENTWISE_BYTES / (gpu.bandwidth * REACHED)
    return linear / (gpu.peak * gpu.linear) + attention / (gpu.peak * gpu.attention), between


def main() -> None:
    print(
        f"LLaDA-8B: {LAYERS} layers, {HEADS} heads of {HEAD_DIM}, bfloat16, full attention, one sequence, {REGIONS} regions"
    )
    print("\npositions   forward   scores  by region  FLOP ratio  memory per layer  from L2 per layer")
    for length in (1024, 4096):
        forward, (scores, regions) = sum(forward_flops(length)), kernel_flops(length)
        memory, cache = kernel_bytes(length)
        flops = f"{forward / 1e12:6.2f} TF  {scores / 1e12:.2f} TF    {regions / 1e12:.2f} TF"
        ratio = 1 + (scores + regions) / forward
        print(f"{length:9}  {flops}  {ratio:10.3f}  {memory / 1e6:13.0f} MB  {cache / 1e6:14.0f} MB")
    print(
        "\ntime of a forward pass with observation over one without; the share of other work not hidden behind products:"
    )
    print("GPU        positions  products + rest       0 %   60 %  100 %   60 %, first pass too   60 %, products only")
    for gpu in (A100, H100):
        for length in (1024, 4096):
            products, between = forward_seconds(gpu, length)
            added = [observation_seconds(gpu, length, exposed, True) for exposed in (0, EXPOSED, 1)]
            ratios = "  ".join(f"{1 + seconds / (products + between):.3f}" for seconds in added)
            both = 1 + observation_seconds(gpu, length, EXPOSED, False) / (products + between)
            print(
                f"{gpu.name:<10} {length:9}  {products * 1e3:5.1f} + {between * 1e3:4.1f} ms    {ratios}"
                f"  {both:21.3f}  {1 + added[1] / products:20.3f}"
            )
    print("\nbusy cycles per tile of 128 keys × 64 queries")
    for gpu in (A100, H100):
        for name, loop in (("inside one region", gpu.alone), ("several regions", gpu.mixed), ("first pass", gpu.first)):
            counts = ", ".join(f"{pipe} {count:.0f}" for pipe, count in cycles(gpu, loop).items())
            print(f"{gpu.name:<10} {name:<18} {counts}")


if __name__ == "__main__":
    main()
