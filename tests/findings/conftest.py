"""Puts this folder on the path, so that the tests can plant traces."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def golden_analysis(golden: Path) -> Path:
    """The analysis part of the golden data."""
    return golden / "analysis"
