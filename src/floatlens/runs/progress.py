"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

# Called with a label and the number of things to do, if known; returns a function to call once per thing done.
ProgressCallback = Callable[[str, int | None], Callable[[], None]]
