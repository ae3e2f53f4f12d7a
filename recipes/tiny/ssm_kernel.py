"""The convolution and scan of `ssm_kernel.c` as a torch function with a gradient; twice as fast as torch's own operations.

It is compiled with the system's C compiler when it is first needed: `available()` returns whether there is one.
"""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = "cc"


def available() -> bool:
    """Whether the kernel can be compiled here."""
    return shutil.which(COMPILER) is not None


@cache
def library(state: int, head: int) -> ctypes.CDLL:
    """The compiled kernel for a state size and a head dimension."""
    file = Path(tempfile.mkdtemp()) / "ssm_kernel.so"
    # not -ffast-math: a library linked with it makes the whole process treat subnormal numbers as zero
    fast = ["-O3", "-march=native", "-fno-math-errno", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
    flags = [*fast, "-shared", "-fPIC", f"-DN={state}", f"-DP={head}"]
    subprocess.run([COMPILER, *flags, str(SOURCE), "-o", str(file), "-lm"], check=True)
    return ctypes.CDLL(str(file))


def _call(function: Any, tensors: list[Tensor], *sizes: int) -> None:
    assert all(v.is_contiguous() and v.dtype == torch.float32 for v in tensors)
    function(*(ctypes.c_void_p(v.data_ptr()) for v in tensors), *(ctypes.c_long(n) for n in sizes))


class ConvolveAndScan(torch.autograd.Function):
    """From rows of x, B and C before the convolution (B, T, C), dt (B, T, H) and the mixer's weights to y (B, T, W)."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, dt: Tensor, a: Tensor, d: Tensor, taps_KC: Tensor, bias: Tensor, state: int
    ) -> Tensor:
        (B, T, C), H = rows.shape, dt.shape[-1]
        rows, dt, taps_KC = rows.contiguous(), dt.contiguous(), taps_KC.contiguous()
        head = (C - 2 * H * state) // H
        kernel = library(state, head)
        before, after, y = torch.empty_like(rows), torch.empty_like(rows), rows.new_empty(B, T, H * head)
        _call(kernel.conv_forward, [rows, taps_KC, bias, before, after], B, T, C)
        _call(kernel.scan_forward, [after, dt, a, d, y], B, T, H)
        ctx.save_for_backward(rows, dt, a, d, taps_KC, before, after)
        ctx.kernel = kernel
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        rows, dt, a, d, taps_KC, before, after = ctx.saved_tensors
        (B, T, C), H = rows.shape, dt.shape[-1]
        g_after, g_dt, g_a, g_d = (
            torch.empty_like(after),
            torch.empty_like(dt),
            torch.zeros_like(a),
            torch.zeros_like(d),
        )
        _call(ctx.kernel.scan_backward, [after, dt, a, d, gy.contiguous(), g_after, g_dt, g_a, g_d], B, T, H)
        g_rows, g_taps, g_bias = torch.empty_like(rows), torch.zeros_like(taps_KC), rows.new_zeros(C)
        _call(ctx.kernel.conv_backward, [rows, taps_KC, before, g_after, g_rows, g_taps, g_bias], B, T, C)
        return g_rows, g_dt, g_a, g_d, g_taps, g_bias, None
