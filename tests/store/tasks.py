"""Tasks for worker processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def doubled(number: int, watch: Any = None) -> int:
    advance = watch(f"number {number}", 1)
    if number < 0:
        raise ValueError(f"{number} is negative")
    advance()
    return 2 * number


def dies_once(number: int, mark: Path, watch: Any = None) -> int:
    """Takes its whole process along the first time that it is called."""
    if not mark.exists():
        mark.touch()
        os._exit(1)
    return number


def makes_a_semaphore(number: int, watch: Any = None) -> int:
    """Compresses with Blosc, which makes a named semaphore in a spawned process; reading a trace does the same."""
    from numcodecs import Blosc

    return len(Blosc().decode(Blosc().encode(bytes(number))))
