"""The kernels, run on the CPU by Triton's interpreter, in a process of its own.

Triton decides when it is imported whether its functions are compiled or interpreted, and transformers imports it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CASES = [str(Path(__file__).with_name(name)) for name in ("interpreted_cases.py", "interpreted_sessions.py")]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_interpreted_kernels_equal_the_definitions() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src"), "PYTEST_ADDOPTS": ""}
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *options, *CASES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
