"""Lines that cannot be used, listed with file, line and reason. Reading continues after them unless `strict` is set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from floatlens.errors import FloatLensError

KEPT = 100_000  # problems kept in memory; beyond that only the count grows
FULL_LIST = "problems.jsonl"  # the full list in a run folder


@dataclass(frozen=True)
class Problem:
    """A line that was skipped.

    >>> str(Problem("nq.jsonl", 7, "has no question"))
    'nq.jsonl, line 7: has no question'
    """

    source: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}: {self.what}"


@dataclass
class Problems:
    """The skipped lines of a data set. With `strict`, the first line that would be skipped raises FloatLensError."""

    strict: bool = False
    skipped: int = 0
    shown: list[Problem] = field(default_factory=list)

    def add(self, source: str, line: int, what: str) -> None:
        problem = Problem(source, line, what)
        if self.strict:
            raise FloatLensError(f"{problem}; fix the line, or leave out --strict to skip it")
        self.skipped += 1
        if len(self.shown) < KEPT:
            self.shown.append(problem)

    def to_records(self) -> Iterator[dict[str, Any]]:
        """Yield every problem as a record for the run folder; the last record counts the problems that were not kept."""
        for problem in self.shown:
            yield {"source": problem.source, "line": problem.line, "problem": problem.what}
        if left := self.skipped - len(self.shown):
            source = self.shown[-1].source
            yield {"source": source, "line": None, "problem": f"and {left} more lines"}

    def summary(self, first: int = 3) -> str:
        """Return the number of skipped lines and the first few of them, or an empty string if there are none.

        >>> problems = Problems()
        >>> problems.add("nq.jsonl", 7, "has no question")
        >>> problems.summary()
        '1 line skipped: nq.jsonl, line 7: has no question'
        """
        if not self.skipped:
            return ""
        more = f"; and {self.skipped - first} more (listed in {FULL_LIST} with --out)" if self.skipped > first else ""
        lines = "line" if self.skipped == 1 else "lines"
        return f"{self.skipped} {lines} skipped: {'; '.join(map(str, self.shown[:first]))}{more}"
