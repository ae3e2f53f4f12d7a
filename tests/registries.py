"""Registries as they were, after a test has added entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from floatlens.registry import Registry


@contextmanager
def restored(registry: Registry[Any]) -> Iterator[None]:
    """Remove, at the end of the block, the entries that were added inside it."""
    registry.load()
    before = dict(registry._entries)
    try:
        yield
    finally:
        registry._entries = before
