"""Shared by all tests: one thread, no network, and the folder of the golden data."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("FLOATLENS_CACHE", str(Path(tempfile.gettempdir()) / "floatlens-tests"))

import hypothesis
import pytest
import torch

from tests.browser import browser, open_page  # noqa: F401  (fixtures of the browser tests)
from tests.golden_data import FOLDER

torch.set_num_threads(1)
# A machine that is busy is not a failure.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


class Deprecations(logging.Handler):
    """What transformers logs as deprecated: most of it never becomes a Python warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "deprecat" in record.getMessage().lower():
            self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def nothing_deprecated_is_called() -> Iterator[None]:
    handler = Deprecations()
    logging.getLogger("transformers").addHandler(handler)
    yield
    logging.getLogger("transformers").removeHandler(handler)
    assert not handler.messages


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden data: FLOATLENS_GOLDEN, or the copy in tests/golden."""
    return FOLDER


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that only run when their marker is named."""
    if "all_models" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("all_models")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
