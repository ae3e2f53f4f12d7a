"""Small tokenizers of each kind, and small random models that can be asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from tests.models.checkpoints import readable
from tests.small_tokenizers import KINDS, WithoutOffsets


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {name: make() for name, make in KINDS.items()}


@pytest.fixture
def fresh() -> Callable[[str], PreTrainedTokenizerFast]:
    """Makes a tokenizer that a test may change."""
    return lambda kind: KINDS[kind]()


@pytest.fixture(scope="session")
def without_offsets() -> type[WithoutOffsets]:
    return WithoutOffsets


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small autoregressive and a small diffusion checkpoint with random weights and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints")
    arm, mdm = readable(folder / "arm"), readable(folder / "mdm", "a2d-llama", seed=1)
    return {"arm": str(arm), "mdm": str(mdm)}
