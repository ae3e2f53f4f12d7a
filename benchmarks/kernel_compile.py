"""Compile the attention kernels without a GPU: registers, spills, and the instructions of each loop.

    python -m benchmarks.kernel_compile                 # sm80 and sm90, bfloat16, head dim 128
    python -m benchmarks.kernel_compile --dtype float32 --head-dim 64 --regions 32

`benchmarks.kernel_cost` estimates time from the instructions of the loops that need no mask.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from floatlens.attention import triton_kernels as kernels
from floatlens.attention.kernel import Tiles, choose_tiles

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
INTEGERS = ("start", "region")  # pointers to integers; all others but q and k point to float32
NUMBERS = ("H", "GROUP", *kernels.VARYING)
ALIGNED = re.compile(r"[qk]_[bht]|H")  # strides are multiples of 16 in every model of interest
PIPES = {
    "tensor": r"HMMA|HGMMA",
    "exp2": r"MUFU",
    "float32": r"FFMA|FADD|FMUL|FSEL|FMNMX|FSETP|FSET",
    "integer": r"LOP3|F2FP|IMAD|IADD3|LEA|SEL|ISETP|PRMT|PLOP3|SHF|VIADD|MOV|IMNMX|VIMNMX|VIADDMNMX",
    "shared": r"LDSM|LDS|STS|SHFL",
    "spills": r"LDL|STL",
}


@dataclass(frozen=True)
class Compiled:
    """What one kernel needs; `loops` counts the instructions of a warp in one turn of each loop, by pipe."""

    registers: int
    stack: int
    shared: int
    loops: list[Counter[str]]


def compile_kernel(kernel: Any, dtype: str, capability: int, constants: dict[str, Any], tiles: Tiles) -> Compiled:
    """Compile a kernel for a GPU that need not be present."""
    signature, aligned = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("q", "k"):
            signature[name] = f"*{SHORT[dtype]}"
        elif name == "scale2":
            signature[name] = "fp32"
        elif name in NUMBERS or ALIGNED.fullmatch(name):
            signature[name] = "i32"
        else:
            signature[name] = "*i32" if name in INTEGERS else "*fp32"
        if signature[name].startswith("*") or ALIGNED.fullmatch(name):
            aligned[index,] = [["tt.divisibility", 16]]
    options = {"num_warps": tiles[2], "num_stages": tiles[3], "enable_fp_fusion": True}
    source = ASTSource(kernel, signature, constants, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([TOOL, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-res-usage", "-sass")
        )
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    return Compiled(registers, stack, built.metadata.shared, weight_loops(code))


def weight_loops(code: str) -> list[Counter[str]]:
    """Instructions by pipe of the loops that compute weights, in the order of the program."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", code, re.MULTILINE)
    lines = [(int(at, 16), re.sub(r"^@!?U?P\w+\s+", "", text)) for at, text in found]
    loops = []
    for end, text in lines:
        jump = re.match(r"BRA\S*\s.*?(0x[0-9a-f]+)", text)
        if jump and int(jump[1], 16) < end:
            names = [text.split()[0] for at, text in lines if int(jump[1], 16) <= at <= end]
            counts = {pipe: sum(bool(re.match(rf"({r})\b", name)) for name in names) for pipe, r in PIPES.items()}
            if counts["exp2"]:
                loops.append(Counter({"all": len(names)} | counts))
    return loops


LOOPS = ("tiles cut at the start", "main loop", "tiles cut at the end")


def compile_one(name: str, dtype: str, head_dim: int, regions: int, capability: int) -> Compiled:
    """A kernel with the tile sizes that `column_sums` would choose for a long sequence."""
    tiles = choose_tiles(getattr(torch, dtype), head_dim, 1024, divmod(capability, 10))
    constants = {"D": head_dim, "DP": max(16, 1 << (head_dim - 1).bit_length()), "CAUSAL": False, "WIDEN": False}
    queries, keys = tiles[:2]
    if name == "logsumexp":
        constants |= {"BM": max(queries, keys), "BN": min(queries, keys)}
        return compile_kernel(kernels.logsumexp_kernel, dtype, capability, constants, tiles)
    constants |= {"BM": queries, "BN": keys, "RP": max(16, 1 << (regions - 1).bit_length())}
    return compile_kernel(kernels.column_kernel, dtype, capability, constants, tiles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", choices=["column", "logsumexp"], nargs="+", default=["column", "logsumexp"])
    parser.add_argument("--dtype", choices=SHORT, default="bfloat16")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--regions", type=int, default=10, help="number of regions")
    parser.add_argument("--target", type=int, nargs="+", default=[80, 90], help="compute capabilities")
    chosen = parser.parse_args()
    print(f"Triton {triton.__version__}, {chosen.dtype}, head dim {chosen.head_dim}, {chosen.regions} regions")
    for target in chosen.target:
        for name in chosen.kernel:
            made = compile_one(name, chosen.dtype, chosen.head_dim, chosen.regions, target)
            size = (
                f"{made.registers} registers, {made.stack} bytes of stack, {made.shared / 1024:.0f} KB of shared memory"
            )
            print(f"sm{target} {name}: {size}")
            for loop, counts in zip(LOOPS, made.loops, strict=True):
                print(f"    {loop}: " + ", ".join(f"{pipe} {count}" for pipe, count in counts.items()))


if __name__ == "__main__":
    main()
