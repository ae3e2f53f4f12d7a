"""The part of the golden data that the findings are compared with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden_analysis(golden: Path) -> Path:
    """The analysis part of the golden data."""
    return golden / "analysis"
