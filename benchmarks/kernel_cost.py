"""The GPU kernel's arithmetic, memory traffic and expected time on LLaDA-8B, counted from the code: it needs no GPU.

    python -m benchmarks.kernel_cost

FLOPs and bytes follow from the shapes. Roofline: the least time that the tensor cores and the memory allow. Expected: the
instructions of the compiled loops (`python -m benchmarks.kernel_compile`), where 60 % of the work beside matrix products is
not hidden behind them, as FlashAttention-2's published 73 % of an A100's peak implies for a loop with the same parts;
programs go to multiprocessors in rounds, and the last one counts in full. Forward pass: linear layers and attention at the
given shares of the peak, and the operations between them as transformers computes them, unfused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

LAYERS, HEADS, HEAD_DIM, WIDTH, MLP, VOCABULARY, REGIONS = 32, 32, 128, 4096, 12288, 126_464, 10
KEY_TILE, QUERY_TILE = 128, 64
BETWEEN_KERNELS, KERNELS = (
    3e-6,
    12,
)  # seconds; column sums, the entropies' parts, and torch operations on queries and keys
EXPOSED, REACHED = 0.6, 0.8  # not hidden behind products; share of the bandwidth that simple kernels reach
SCORES, BY_REGION = 2 * HEAD_DIM, 2 * 2 * 16  # FLOPs per query and key; both halves of a weight, with 16 columns
# Bytes per token and layer between the products: two RMS norms in float32 (36 per element), RoPE of queries and keys (20),
# two residual sums (6), SwiGLU (10), the transposed copy of the attention's output (4).
ELEMENTWISE_BYTES = WIDTH * (2 * 36 + 2 * 20 + 2 * 6 + 4) + MLP * 10
# Norms and sums of queries, keys and values by torch: each copied to float32 and read for its norm, queries also for sums.
VECTOR_BYTES = WIDTH * (3 * (2 + 4 + 4) + 4)


@dataclass(frozen=True)
class GPU:
    """Published data of a GPU (dense bfloat16), and instructions of a warp per tile: exp2, float32, integer."""

    name: str
    peak: float  # FLOP per second
    bandwidth: float  # bytes per second
    processors: int
    clock: float  # boost
    lanes: tuple[int, int, int]  # per multiprocessor: exp2, float32, integer
    linear: float  # share of the peak that the linear layers reach
    attention: float  # share of the peak that the model's own attention reaches
    warps: int
    main: tuple[int, int, int]
    first: tuple[int, int, int]  # the pass that finds the log of the rows' sums

    def seconds(self, others: tuple[int, int, int], products: int, length: int, exposed: float) -> float:
        """Seconds of a pass over all layers, if this share of the other work is not hidden behind matrix products."""
        matrix = KEY_TILE * QUERY_TILE * products / (self.peak / self.processors / self.clock)
        pipes = [count * self.warps * 32 / lanes for count, lanes in zip(others, self.lanes, strict=True)]
        rounds = ceil(ceil(length / KEY_TILE) * HEADS / self.processors)
        per_tile = max(matrix, *pipes, matrix + exposed * sum(pipes))
        return LAYERS * rounds * ceil(length / QUERY_TILE) * per_tile / self.clock


A100 = GPU("A100", 312e12, 2.04e12, 108, 1.41e9, (16, 64, 64), 0.80, 0.70, 4, (64, 248, 201), (72, 312, 53))
H100 = GPU("H100", 989e12, 3.35e12, 132, 1.83e9, (16, 128, 64), 0.70, 0.50, 8, (32, 132, 104), (34, 138, 22))


def forward_flops(length: int) -> tuple[float, float]:
    """FLOPs of one forward pass: linear layers, attention."""
    weights = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * MLP) + VOCABULARY * WIDTH
    return 2 * length * weights, LAYERS * 4 * length**2 * WIDTH


def forward_seconds(gpu: GPU, length: int) -> float:
    linear, attention = forward_flops(length)
    between = LAYERS * length * ELEMENTWISE_BYTES / (gpu.bandwidth * REACHED)
    return linear / (gpu.peak * gpu.linear) + attention / (gpu.peak * gpu.attention) + between


def kernel_flops(length: int) -> float:
    """FLOPs of the main pass on the tensor cores, all layers."""
    return LAYERS * HEADS * length**2 * (SCORES + BY_REGION)


def kernel_bytes(length: int) -> tuple[float, float]:
    """Bytes of one layer: to and from memory if each tensor is read once; from the L2 cache (queries, per key tile)."""
    tensor, row = length * WIDTH * 2, length * HEADS * 4
    return 2 * tensor + row + REGIONS * row, ceil(length / KEY_TILE) * (tensor + row)


def observation_seconds(gpu: GPU, length: int, exposed: float, lse_given: bool = True) -> float:
    """Seconds that observation adds to a forward pass: the kernel, norms and sums by torch, gaps between kernels."""
    seconds = gpu.seconds(gpu.main, SCORES + BY_REGION, length, exposed)
    if not lse_given:
        seconds += gpu.seconds(gpu.first, SCORES, length, exposed)
    return seconds + LAYERS * (length * VECTOR_BYTES / (gpu.bandwidth * REACHED) + KERNELS * BETWEEN_KERNELS)


def main() -> None:
    print(f"LLaDA-8B ({LAYERS} layers, {HEADS} heads of {HEAD_DIM}), bfloat16, full attention, {REGIONS} regions\n")
    print("| positions | forward pass | kernel | memory per layer | from L2 per layer | FLOP per byte |")
    print("|---:|---:|---:|---:|---:|---:|")
    for length in (1024, 4096):
        memory, cache = kernel_bytes(length)
        forward, kernel = sum(forward_flops(length)) / 1e12, kernel_flops(length)
        traffic = f"{memory / 1e6:.0f} MB | {cache / 1e6:.0f} MB | {kernel / LAYERS / memory:,.0f}"
        print(f"| {length:,} | {forward:.2f} TFLOP | {kernel / 1e12:.2f} TFLOP | {traffic} |")
    print("\nTime over a forward pass without observation\n")
    print(
        "| GPU | positions | roofline: products, memory | all hidden | expected | nothing hidden | with the first pass |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for gpu in (A100, H100):
        for length in (1024, 4096):
            plain = forward_seconds(gpu, length)
            least = kernel_flops(length) / gpu.peak, LAYERS * kernel_bytes(length)[0] / gpu.bandwidth
            ratios = [1 + observation_seconds(gpu, length, exposed) / plain for exposed in (0, EXPOSED, 1)]
            ratios.append(1 + observation_seconds(gpu, length, EXPOSED, lse_given=False) / plain)
            roofline = ", ".join(f"{1e3 * seconds:.2f} ms" for seconds in least)
            print(f"| {gpu.name} | {length:,} | {roofline} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
