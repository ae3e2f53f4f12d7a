"""Lines that cannot be used: named with file, line and reason, counted, and no reason to stop unless asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from floatlens.errors import FloatLensError

SHOWN = 100  # problems kept word for word; beyond that only the count grows


class BadRecord(Exception):
    """Raised by a layout: this record cannot become a sample, for this reason."""


@dataclass(frozen=True)
class Problem:
    """One line that was skipped, or kept with a remark.

    >>> str(Problem("nq.jsonl", 7, "has no question"))
    'nq.jsonl, line 7: has no question'
    """

    source: str
    line: int
    what: str
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}: {self.what}"


@dataclass
class Problems:
    """All problems of a reading. With `strict`, the first line that would be skipped stops it."""

    strict: bool = False
    skipped: int = 0
    remarked: int = 0
    shown: list[Problem] = field(default_factory=list)

    def add(self, source: str, line: int, what: str, kept: bool = False) -> None:
        problem = Problem(source, line, what, kept)
        if kept:
            self.remarked += 1
        else:
            if self.strict:
                raise FloatLensError(f"{problem}; mend the line, or leave out --strict to skip it")
            self.skipped += 1
        if len(self.shown) < SHOWN:
            self.shown.append(problem)

    def summary(self, first: int = 3) -> str:
        """The count and the first few, or nothing if all was well.

        >>> problems = Problems()
        >>> problems.add("nq.jsonl", 7, "has no question")
        >>> problems.summary()
        '1 line skipped: nq.jsonl, line 7: has no question'
        """
        bad = [problem for problem in self.shown if not problem.kept]
        if not self.skipped:
            return ""
        more = f"; and {self.skipped - len(bad[:first])} more" if self.skipped > first else ""
        lines = "line" if self.skipped == 1 else "lines"
        return f"{self.skipped} {lines} skipped: {'; '.join(map(str, bad[:first]))}{more}"
