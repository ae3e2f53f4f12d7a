"""Where the kernel runs, its tiles, that it compiles, and that it gives the exact numbers in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from floatlens.attention.kernel import available, choose_tiles

ROOT = Path(__file__).parents[2]
CASES = [str(Path(__file__).with_name(name)) for name in ("interpreted_kernel.py", "interpreted_sessions.py")]
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_a_cpu_is_left_to_the_stream_path() -> None:
    assert not available("cpu")


def test_a_device_without_triton_is_left_to_the_stream_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatlens.attention.kernel.find_spec", lambda name: None)
    assert not available("cuda")


@pytest.mark.parametrize(("capability", "able"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_needs_tensor_cores_for_bfloat16(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], able: bool
) -> None:
    monkeypatch.setattr("floatlens.attention.kernel.find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert available("cuda") is able


def test_a_single_query_takes_the_smallest_tile() -> None:
    assert choose_tiles(torch.float16, head_dim=64, queries=1, capability=(9, 0)) == (16, 128, 8, 3)


@NEEDS_TRITON
def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """What the interpreter runs may still not compile; and the sums of all loops have to stay in registers."""
    command = [sys.executable, "-m", "benchmarks.kernel_compile", "--target", "80", "--kernel", "column", "logsumexp"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loops = [line for line in done.stdout.splitlines() if "tensor" in line]
    assert len(loops) == 6
    assert all("spills 0" in line for line in loops), done.stdout


@NEEDS_TRITON
def test_the_interpreted_kernels_equal_the_definitions() -> None:
    """In a process of its own: Triton decides when it is imported whether its functions are compiled or interpreted."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src"), "PYTEST_ADDOPTS": ""}
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *options, *CASES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
