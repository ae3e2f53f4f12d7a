"""What each part of an observed attention call costs: nanoseconds per weight of single operations, compared with SDPA.

    python -m benchmarks.attention_parts [--positions 288] [--heads 8] [--width 32] [--regions 12]

One thread, float32, CPU time. The sum of the parts is the least that the fused pass can cost with these operations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.measure import cpu_seconds

ROUNDS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=288)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--regions", type=int, default=12)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    H, T, D = chosen.heads, chosen.positions, chosen.width
    q, k, v, output = (torch.randn(H, T, D) for _ in range(4))
    scores, product, weights = torch.randn(H, T, T), torch.empty(H, T, T), torch.rand(H, T, T)
    member, pooled, sums = torch.rand(H, chosen.regions, T), torch.zeros(H, chosen.regions, T), torch.empty(H, T)
    parts: dict[str, Callable[[], object]] = {
        "scores (q k)": lambda: torch.baddbmm(product, q, k.transpose(1, 2), beta=0, alpha=0.1, out=product),
        "exponential": lambda: torch.exp2(scores, out=product),
        "row sums": lambda: torch.sum(weights, -1, out=sums),
        "output (weights v)": lambda: torch.bmm(weights, v, out=output),
        "region sums": lambda: pooled.baddbmm_(member, weights),
        "entropy": lambda: torch.sum(torch.mul(scores, weights, out=product), -1, out=sums),
    }
    total = 0.0
    for name, part in parts.items():
        spent = cpu_seconds(part, ROUNDS) / weights.numel() * 1e9
        total += spent
        print(f"{name:20} {spent:5.2f} ns per weight")
    sdpa = cpu_seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None]), ROUNDS)
    print(f"{'all parts':20} {total:5.2f}\n{'SDPA':20} {sdpa / weights.numel() * 1e9:5.2f}")


if __name__ == "__main__":
    main()
