"""Small random models and tokenizers for evaluation."""

from __future__ import annotations

import pytest

from tests.data.conftest import tokenizers  # noqa: F401  (a fixture)
from tests.models.checkpoints import readable


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small autoregressive and a small diffusion checkpoint with random weights and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints")
    arm, mdm = readable(folder / "arm"), readable(folder / "mdm", "a2d-llama", seed=1)
    return {"arm": str(arm), "mdm": str(mdm)}
