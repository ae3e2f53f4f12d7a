"""What all tests share: one thread, no network, and the place of the golden data."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest
import torch

from tests.browser import browser, open_page  # noqa: F401  (fixtures of the browser tests)
from tests.golden_data import FOLDER

torch.set_num_threads(1)
# A machine that is busy is not a failure.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden data: FLOATLENS_GOLDEN, or the copy in tests/golden."""
    return FOLDER
