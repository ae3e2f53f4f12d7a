"""CPU time of functions: the median of several rounds, of one function or of several that are called alternately."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any


def cpu_seconds(way: Callable[[], Any], rounds: int) -> float:
    """Median CPU seconds, after one call to warm up."""
    way()
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        way()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def interleaved(ways: dict[str, Callable[[], Any]], rounds: int = 7) -> dict[str, float]:
    """Median CPU seconds of each function, after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            gc.collect()
            start = time.process_time()
            way()
            if number:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}
