"""The number of questions per part, and how it is reduced to fit a time budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from floatlens.errors import FloatLensError
from floatlens.stats import SMALLEST_N

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
LEAST = SMALLEST_N  # samples that a claim needs; below this a part is dropped instead of reduced
FIRST_TO_GO = (
    "stress",
    "causes",
    "knowledge",
)  # dropped when the minimum does not fit; traces serve most findings and stay


@dataclass(frozen=True)
class Sizes:
    """Number of questions per data set and part; None means all.

    `traces` counts questions traced with passages, `short` questions traced without.
    """

    traces: int | None = 24
    knowledge: int | None = 100
    stress: int | None = 50
    causes: int | None = 50
    short: int | None = 24

    def limited(self, limit: int | None) -> Sizes:
        """Return sizes with no part larger than `limit`.

        >>> Sizes().limited(20)
        Sizes(traces=20, knowledge=20, stress=20, causes=20, short=20)
        """
        if limit is None:
            return self
        if limit < 1:
            raise FloatLensError(f"limit {limit} is not a positive number; omit it for the default sizes")
        return Sizes(**{name: min(size, limit) if size is not None else limit for name, size in asdict(self).items()})

    def bounded(self, counts: Sequence[int]) -> Sizes:
        """Return sizes limited by the largest data set, with numbers instead of None."""
        most = max(counts)
        return Sizes(**{name: min(most, most if size is None else size) for name, size in asdict(self).items()})


DEMO = Sizes(traces=5, knowledge=24, stress=40, causes=12, short=14)
FULL = Sizes(traces=100, knowledge=None, stress=500, causes=500, short=100)


def parse_time(text: str) -> float:
    """Parse a duration such as 90s, 10m or 1.5h to seconds.

    >>> parse_time("10m"), parse_time("1.5h"), parse_time("1h30m")
    (600.0, 5400.0, 5400.0)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise FloatLensError(f"budget {text!r} is not a duration; write it as 90s, 10m or 1h30m")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise FloatLensError(f"budget {text!r} leaves no time; write it as 90s, 10m or 1h30m")
    return seconds


def fit_sizes(
    sizes: Sizes, parts: Sequence[str], seconds: float, predict: Callable[[Sizes, Sequence[str]], float]
) -> tuple[Sizes, tuple[str, ...], list[str]]:
    """Return the largest sizes that fit into `seconds`, the parts that remain, and a list of what was reduced.

    All parts are reduced by the same share, none below what a claim needs; after that, whole parts are dropped.

    >>> sizes, parts, cut = fit_sizes(Sizes(), ["traces", "knowledge"], 40, lambda s, parts: s.traces + s.knowledge / 2)
    >>> sizes
    Sizes(traces=12, knowledge=54, stress=27, causes=27, short=12)
    >>> cut[:2]
    ['traces: 12 questions per data set instead of 24', 'knowledge: 54 questions per data set instead of 100']
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
                cuts.append(f"{going}: left out, since even {LEAST} questions per data set do not fit")
                continue
            cuts.append("the budget is too short even for the minimum; the study will take longer")
        break
    for name, size in _numbers(sizes).items():
        part = "traces" if name == "short" else name
        if part in kept and (now := _numbers(cut)[name]) < size:
            what = "short traces" if name == "short" else name
            cuts.append(f"{what}: {now} questions per data set instead of {size}")
    return replace(cut), tuple(kept), cuts


def _numbers(sizes: Sizes) -> dict[str, int]:
    return {name: size for name, size in asdict(sizes).items() if size is not None}


def longest(seconds: Mapping[str, float], jobs: int) -> float:
    """Return the time that models take in parallel: the longest first, each on the worker that is free first.

    >>> longest({"a": 60, "b": 50, "c": 5}, 2)
    60.0
    """
    workers = [0.0] * max(jobs, 1)
    for one in sorted(seconds.values(), reverse=True):
        workers[workers.index(min(workers))] += one
    return max(workers)
