"""How many questions each part gets, and how they are cut to fit a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from floatlens.errors import FloatLensError

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
LEAST = 5  # a claim needs as many samples; below that a part is dropped rather than cut
FIRST_TO_GO = ("stress", "causes", "knowledge")  # when even the least does not fit; traces serve most findings and stay


@dataclass(frozen=True)
class Sizes:
    """Questions a data set that are traced, answered, asked under stress, and asked with interventions; None is all."""

    traces: int | None = 10
    knowledge: int | None = 100
    stress: int | None = 40
    causes: int | None = 40

    def limited(self, limit: int | None) -> Sizes:
        """No part larger than `limit`.

        >>> Sizes().limited(20)
        Sizes(traces=10, knowledge=20, stress=20, causes=20)
        """
        if limit is None:
            return self
        if limit < 1:
            raise FloatLensError(f"limit {limit} is not a positive number; leave it out for the usual sizes")
        return Sizes(**{name: min(size, limit) if size is not None else limit for name, size in asdict(self).items()})

    def bounded(self, counts: Sequence[int]) -> Sizes:
        """As large as the largest data set allows, with numbers in place of None."""
        most = max(counts)
        return Sizes(**{name: min(most, most if size is None else size) for name, size in asdict(self).items()})


DEMO = Sizes(traces=2, knowledge=6, stress=5, causes=5)
FULL = Sizes(traces=100, knowledge=None, stress=500, causes=500)


def parse_time(text: str) -> float:
    """Seconds of a time such as 90s, 10m or 1.5h.

    >>> parse_time("10m"), parse_time("1.5h"), parse_time("1h30m")
    (600.0, 5400.0, 5400.0)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise FloatLensError(f"budget {text!r} is not a time; write it as 90s, 10m or 1h30m")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise FloatLensError(f"budget {text!r} leaves no time; write it as 90s, 10m or 1h30m")
    return seconds


def fitted(
    sizes: Sizes, parts: Sequence[str], seconds: float, predict: Callable[[Sizes, Sequence[str]], float]
) -> tuple[Sizes, tuple[str, ...], list[str]]:
    """The largest sizes that `predict` to take no longer than `seconds`, the parts that stay, and what was cut.

    All parts are cut by the same share, none below the least that a claim needs; then whole parts go.

    >>> fitted(Sizes(10, 100, 40, 40), ["traces", "knowledge"], 30, lambda s, parts: s.traces + s.knowledge / 2)
    (Sizes(traces=5, knowledge=50, stress=20, causes=20), ('traces', 'knowledge'), ['traces: 5 questions a data set
    instead of 10', 'knowledge: 50 questions a data set instead of 100'])
    """
    kept = list(parts)
    cuts: list[str] = []
    while True:
        for percent in range(100, -1, -1):
            cut = Sizes(**{n: max(min(LEAST, s), int(s * percent / 100)) for n, s in _numbers(sizes).items()})
            if predict(cut, kept) <= seconds:
                break
        else:
            going = next((name for name in FIRST_TO_GO if name in kept and len(kept) > 1), None)
            if going is not None:
                kept.remove(going)
                cuts.append(f"{going}: left out, since even {LEAST} questions a data set do not fit")
                continue
            cuts.append("the time is too short even for the least; the study will take longer")
        break
    for name, size in _numbers(sizes).items():
        if name in kept and (now := _numbers(cut)[name]) < size:
            cuts.append(f"{name}: {now} questions a data set instead of {size}")
    return replace(cut), tuple(kept), cuts


def _numbers(sizes: Sizes) -> dict[str, int]:
    return {name: size for name, size in asdict(sizes).items() if size is not None}


def longest(seconds: Mapping[str, float], jobs: int) -> float:
    """Time that models take side by side: the longest first, each to the worker that is free soonest.

    >>> longest({"a": 60, "b": 50, "c": 5}, 2)
    60.0
    """
    workers = [0.0] * max(jobs, 1)
    for one in sorted(seconds.values(), reverse=True):
        workers[workers.index(min(workers))] += one
    return max(workers)
