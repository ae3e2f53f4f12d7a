"""The type of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable

# Called with a label and the number of items, if known; returns a function to call once per finished item.
ProgressCallback = Callable[[str, int | None], Callable[[], None]]
