"""Puts this folder on the path, so that the tests can plant traces."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def golden_analysis() -> Path:
    """The analysis part of the golden data: FLOATLENS_GOLDEN, else tests/golden."""
    root = Path(os.environ.get("FLOATLENS_GOLDEN") or Path(__file__).parents[1] / "golden")
    if not (root / "analysis").is_dir():
        pytest.skip(f"no golden data at {root}")
    return root / "analysis"
