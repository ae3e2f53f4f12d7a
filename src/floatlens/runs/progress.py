"""What long work tells while it goes on: what begins, and each thing that is done."""

from __future__ import annotations

from collections.abc import Callable

# Told what begins and how many things it has, if that is known; returns what is to be called for each that is done.
Watch = Callable[[str, int | None], Callable[[], None]]
