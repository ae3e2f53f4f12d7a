"""Where the kernel runs, its tiles, and that it compiles."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from floatlens.attention.kernels.column_sums import Regions, Tiles, available, choose_tiles

ROOT = Path(__file__).parents[3]
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_a_cpu_is_left_to_the_stream_path() -> None:
    assert not available("cpu")


def test_a_device_without_triton_is_left_to_the_stream_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatlens.attention.kernels.column_sums.find_spec", lambda name: None)
    assert not available("cuda")


@pytest.mark.parametrize(("capability", "able"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_needs_tensor_cores_for_bfloat16(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], able: bool
) -> None:
    monkeypatch.setattr("floatlens.attention.kernels.column_sums.find_spec", lambda name: name)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert available("cuda") is able


def test_tiles_inside_one_region_come_first_in_every_row() -> None:
    order, rank = Regions(torch.tensor([[0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]]), 3).tiles(2)
    assert order.tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]
    assert rank.tolist() == [[0, 0, 1, 2, 2], [0, 1, 2, 2, 2]]


def test_a_single_query_takes_the_smallest_tile() -> None:
    assert choose_tiles(torch.float16, head_dim=64, queries=1, capability=(9, 0)) == Tiles(16, 128, 8, 3)


@NEEDS_TRITON
def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """What the interpreter runs may still not compile; and the sums of the main loop have to stay in registers."""
    command = [sys.executable, "-m", "benchmarks.kernel_compile", "--target", "80", "--kernel", "column", "logsumexp"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    main_loops = [line for line in done.stdout.splitlines() if "main loop" in line and "tensor" in line]
    assert len(main_loops) == 2
    assert all("spills 0" in line for line in main_loops), done.stdout
