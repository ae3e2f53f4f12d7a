"""Small tokenizers of each kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

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
