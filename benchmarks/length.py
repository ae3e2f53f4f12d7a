"""A traced step by length: memory and time of one layer of LLaDA-8B's shape, beside plain SDPA, and of 32 such layers.

    python -m benchmarks.length [--positions 1024 4096 16384 32768] [--heads 32]

32 heads of 128, one step, CPU time of one thread, each length in a process of its own. Stored: 32 layers in float16 before
compression, per head by default; `--detail summary` keeps means over heads.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

LAYERS, HEAD_DIM = 32, 128


def measure(positions: int, heads: int, traced: bool) -> dict[str, float]:
    """Seconds and MiB above the queries, keys and values of one attention call, plain or observed."""
    from floatlens.attention.call import Inputs
    from floatlens.attention.session import Session

    torch.set_num_threads(1)
    q, k, v = (torch.randn(1, heads, positions, HEAD_DIM) for _ in range(3))
    torch.nn.functional.scaled_dot_product_attention(q[:, :, :64], k[:, :, :64], v[:, :, :64])
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    torch.nn.functional.scaled_dot_product_attention(q, k, v)
    if traced:
        session = Session(implementation="stream")
        session.see(0, Inputs(q, k, v, None, None, False))
        assert session.results["received"][0].shape[-1] == positions
    seconds = time.process_time() - start
    return {"seconds": seconds, "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, nargs="+", default=[1024, 4096, 16384, 32768])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--one", choices=("plain", "trace"), help="measure one length and print JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.positions[0], chosen.heads, chosen.one == "trace")))
        return
    print(
        "positions   plain s   trace s  ratio   plain MiB  trace MiB  per 1k positions   stored per step: heads, summary"
    )
    for positions in chosen.positions:
        found = {}
        for way in ("plain", "trace"):
            sizes = ["--positions", str(positions), "--heads", str(chosen.heads), "--one", way]
            command = [sys.executable, "-m", "benchmarks.length", *sizes]
            found[way] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        plain, trace = found["plain"], found["trace"]
        # received, qk, qk_norm, qk_cos and value_norm, per head and position, in float16, before compression
        heads_mb, summary_mb = (5 * LAYERS * count * positions * 2 / 1e6 for count in (chosen.heads, 1))
        print(
            f"{positions:>9} {plain['seconds']:>9.2f} {trace['seconds']:>9.2f} {trace['seconds'] / plain['seconds']:>6.2f} "
            f"{plain['mib']:>11.0f} {trace['mib']:>10.0f} {1024 * trace['mib'] / positions:>17.1f} "
            f"{heads_mb:>15.0f} MB, {summary_mb:.1f} MB (of {LAYERS} layers)",
            flush=True,
        )


if __name__ == "__main__":
    main()
