"""Count forward passes, so that a test can check whether a run has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Passes:
    count = 0


@contextmanager
def counted(model: Any) -> Iterator[Passes]:
    """Count the forward passes of a torch model while the block runs."""
    passes = Passes()

    def one_more(*_: Any) -> None:
        passes.count += 1

    handle = model.register_forward_pre_hook(one_more)
    try:
        yield passes
    finally:
        handle.remove()
