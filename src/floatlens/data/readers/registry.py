"""The registry of readers, which defines the data that FloatLens can read.

There are three kinds, each registered with one line here or in a user's package: a `FileFormat` finds the records of a
file (`formats.py`), a `RecordLayout` makes a sample of a record (`layouts.py`), and a `NamedData` yields the samples of a
data set that is generated or bundled (`world/datasets.py`, `atlas/datasets.py`, `prose.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from floatlens.data.readers.fields import BadRecord, Record
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError, unknown_name
from floatlens.registry import Registry

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


@dataclass(frozen=True)
class FileFormat:
    """How the records of a file are found.

    Parameters
    ----------
    endings: file name extensions, such as `.jsonl`; a final `.gz` is removed first.
    records: a function of a path that yields (line number, record) and reports bad lines to `problems`.
    """

    name: str
    endings: tuple[str, ...]
    records: Callable[[Path, Problems], Iterator[tuple[int, Record]]]


@dataclass(frozen=True)
class RecordLayout:
    """How a record becomes a sample.

    Parameters
    ----------
    sample: a function of a record and a default id that returns a `Sample`; it raises `BadRecord` with the reason.
    matches: a function that returns whether a record has this layout; without it, the layout must be chosen by name.
    """

    name: str
    sample: Callable[[Record, str], Sample]
    matches: Callable[[Record], bool] = lambda record: False


@dataclass(frozen=True)
class NamedData:
    """Data sets that are selected by name, such as `world:fresh`.

    Parameters
    ----------
    names: each is `name` or `name:part`; `name` alone stands for all of them if it is not one of them.
    samples: a function (name, split, limit, *, passages, gold_at, seed) that yields samples with the gold passages among
        `passages` passages; each of these may be None for the default.
    """

    name: str
    names: Sequence[str]
    samples: Callable[..., Iterator[Sample]]

    def expand(self, name: str) -> list[str]:
        """Return the individual data sets of a name; an unknown one is an error."""
        if name not in self.names and name != self.name:
            raise unknown_name("data set", name, self.names)
        return [name] if name in self.names else list(self.names)


AnyReader: TypeAlias = FileFormat | RecordLayout | NamedData
SampleFunction: TypeAlias = Callable[[Record], Sample]  # a user's own layout
R = TypeVar("R", FileFormat, RecordLayout, NamedData, SampleFunction)
K = TypeVar("K", FileFormat, RecordLayout, NamedData)

READERS: Registry[AnyReader] = Registry(
    "reader", "floatlens.data", ("readers.formats", "readers.layouts", "world.datasets", "atlas.datasets", "prose")
)


def register_reader(reader: R, *, priority: int = 0) -> R:
    """Register a reader: a `FileFormat`, a `RecordLayout`, a `NamedData`, or a function `record -> Sample`.

    A function becomes a layout with the function's name, to be chosen with `--layout NAME`. Layouts with a higher priority
    are tried first when the layout of a record is detected.

    >>> @register_reader                                                                 # doctest: +SKIP
    ... def trivia(record):
    ...     return fl.Sample(record["qid"], record["ask"], [record["target"]])
    """
    entry = reader if isinstance(reader, FileFormat | RecordLayout | NamedData) else layout_of(reader)
    function = {FileFormat: "records", RecordLayout: "sample", NamedData: "samples"}.get(type(reader))
    READERS.add(entry.name, entry, priority=priority, source=getattr(reader, function) if function else reader)
    return reader


def layout_of(function: SampleFunction) -> RecordLayout:
    """Return a layout that uses a user's function; a record for which it fails is a bad record."""
    name = getattr(function, "__name__", type(function).__name__)

    def sample(record: Record, default_id: str) -> Sample:
        try:
            made = function(record)
        except (LookupError, TypeError, ValueError) as error:
            raise BadRecord(f"reader {name} failed ({type(error).__name__}: {error})") from error
        if not isinstance(made, Sample):
            raise FloatLensError(f"reader {name} returned {type(made).__name__}; expected a floatlens.Sample")
        return made if made.id else replace(made, id=default_id)

    return RecordLayout(name, sample)


def readers(kind: type[K]) -> dict[str, K]:
    """Return all readers of one kind, by name."""
    return {name: reader for name, reader in READERS.items() if isinstance(reader, kind)}


def formats() -> dict[str, FileFormat]:
    """Return the file formats by ending."""
    return {ending: reader for reader in readers(FileFormat).values() for ending in reader.endings}


def named_data(name: str) -> NamedData | None:
    """Return the reader of a named data set, such as `world:fresh`; None for files and the Hub."""
    return readers(NamedData).get(name.partition(":")[0])


def records_of(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield line numbers and records of a file, by its ending."""
    known = formats()
    ending = ending_of(path)
    if ending not in known:
        raise FloatLensError(
            f"{path} has the ending {ending or 'none'!r}, which is not supported; "
            f"use one of {', '.join([*known, '.jsonl.gz'])}"
        )
    return known[ending].records(path, problems)


def ending_of(path: Path) -> str:
    """Return the extension that determines the format of a file."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()
