"""Read a data set: a file, a folder, the bundled world, or a data set of the Hub, as a stream of samples.

`formats.py` finds the records of a file. Readers are registered here or in a user's package: a `RecordLayout` makes a sample
of a record (`layouts.py`), a `NamedData` yields the samples of a data set that is generated or bundled (`world.py`,
`atlas.py`, `prose.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from floatlens.data import formats
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError, unknown_name
from floatlens.registry import Registry

KEPT = 100_000  # problems kept in memory; beyond that only the count grows
FULL_LIST = "problems.jsonl"  # the full list in a run folder
T = TypeVar("T")
Record: TypeAlias = Mapping[str, Any]
SampleFunction: TypeAlias = Callable[[Record], Sample]


@dataclass
class Problems:
    """The skipped lines of a data set. With `strict`, the first line that would be skipped raises FloatLensError.

    >>> problems = Problems()
    >>> problems.add("nq.jsonl", 7, "has no question")
    >>> problems.summary()
    '1 line skipped: nq.jsonl, line 7: has no question'
    """

    strict: bool = False
    skipped: int = 0
    kept: list[dict[str, Any]] = field(default_factory=list)

    def add(self, source: str, line: int, what: str) -> None:
        if self.strict:
            raise FloatLensError(f"{source}, line {line}: {what}; fix the line, or leave out strict=True to skip it")
        self.skipped += 1
        if len(self.kept) < KEPT:
            self.kept.append({"source": source, "line": line, "problem": what})

    def to_records(self) -> list[dict[str, Any]]:
        """Every problem as a record for the run folder; the last record counts the problems that were not kept."""
        left = self.skipped - len(self.kept)
        more = {"line": None, "problem": f"and {left} more lines"}
        return [*self.kept, *([{**self.kept[-1], **more}] if left else [])]

    def sentences(self) -> list[str]:
        """The problems that were kept, in words."""
        return [f"{each['source']}, line {each['line']}: {each['problem']}" for each in self.kept]

    def summary(self, first: int = 3) -> str:
        """The number of skipped lines and the first few of them; empty if there are none."""
        if not self.skipped:
            return ""
        more = f"; and {self.skipped - first} more (listed in {FULL_LIST} with --out)" if self.skipped > first else ""
        lines = "line" if self.skipped == 1 else "lines"
        return f"{self.skipped} {lines} skipped: {'; '.join(self.sentences()[:first])}{more}"


@dataclass(frozen=True)
class RecordLayout:
    """How a record becomes a sample.

    Parameters
    ----------
    sample: a function that makes a `Sample` of a record. It may leave the id empty. A record for which it raises
        LookupError, TypeError or ValueError is skipped.
    matches: a function that returns whether a record has this layout; without it, the layout must be chosen by name.
    """

    name: str
    sample: SampleFunction
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


R = TypeVar("R", RecordLayout, NamedData, SampleFunction)
READERS: Registry[RecordLayout | NamedData] = Registry(
    "reader", "floatlens.data", ("layouts", "world", "atlas", "prose")
)


def register_reader(reader: R, *, priority: int = 0) -> R:
    """Register a reader: a `RecordLayout`, a `NamedData`, or a function `record -> Sample`.

    A function becomes a layout with the function's name, to be chosen with `--columns NAME` (docs/howto/data.md). Layouts
    with a higher priority are tried first when the layout of a record is detected.
    """
    entry = reader if isinstance(reader, RecordLayout | NamedData) else layout_of(reader)
    function = entry.samples if isinstance(entry, NamedData) else entry.sample
    READERS.add(entry.name, entry, priority=priority, source=getattr(function, "func", function))
    return reader


def layout_of(function: SampleFunction) -> RecordLayout:
    """Return the layout of a user's function."""
    return RecordLayout(getattr(function, "__name__", type(function).__name__), function)


def layouts() -> dict[str, RecordLayout]:
    """Return all record layouts by name."""
    return {name: reader for name, reader in READERS.items() if isinstance(reader, RecordLayout)}


def named_data(name: str) -> NamedData | None:
    """Return the reader of a named data set, such as `world:fresh`; None for files and the Hub."""
    named = {each: reader for each, reader in READERS.items() if isinstance(reader, NamedData)}
    return named.get(name.partition(":")[0])


@dataclass
class SampleStream:
    """The samples of a data set, to be iterated once. `problems` lists the lines skipped so far."""

    name: str
    problems: Problems
    stream: Iterator[Sample]

    def __iter__(self) -> Iterator[Sample]:
        empty = True
        for sample in self.stream:
            empty = False
            yield sample
        if empty:
            raise FloatLensError(f"{self.name} has no usable line ({self.problems.summary() or 'no record at all'})")


def read(
    source: str | Path,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    layout: str | None = None,
    columns: Mapping[str, str] | None = None,
    reader: SampleFunction | None = None,
    passages: int | None = None,
    gold_at: int | None = None,
    strict: bool = False,
) -> SampleStream:
    """Read a data set, one sample at a time.

    Parameters
    ----------
    source: a file, a folder with one file per split, `world`, `world:NAME`, or the name of a data set on the Hub.
    split: `train`, `validation` or `test` (default; `validation` for the Hub).
    limit: maximum number of samples: the first ones, or with `seed` a fair draw, in the file's order.
    layout: how records are read, such as `kilt`; detected automatically by default.
    columns: the names of the columns by role: id, question, answers, passages, gold.
    reader: a function that makes a `Sample` of a record (a dictionary). A record for which it raises LookupError, TypeError
        or ValueError is skipped and listed in `problems`.
    passages, gold_at: number of passages and index of the gold one, for data that is generated; other data has its own.
    strict: raise FloatLensError at the first record that cannot be used.

    >>> samples = list(read("world:fresh", limit=2, passages=3))
    >>> len(samples), len(samples[0].passages)
    (2, 3)
    """
    name = str(source)
    if limit is not None and limit < 1:
        raise FloatLensError(f"limit {limit} is not a positive number; leave it out to read everything")
    problems = Problems(strict=strict)
    if data := named_data(name):
        parts = (
            data.samples(part, split, limit, passages=passages, gold_at=gold_at, seed=seed) for part in expand(name)
        )
        return SampleStream(name, problems, (sample for part in parts for sample in part))
    path = _path(name, split)
    records = formats.records_of(path, problems) if path else formats.hub(name.removeprefix("hf:"), split)
    made = samples(records, path.name if path else name, problems, chosen=_layout(layout, columns, reader))
    return SampleStream(label(name), problems, take(made, limit, seed))


def expand(name: str) -> list[str]:
    """Return the individual data sets of a name."""
    data = named_data(name)
    if data is None or name in data.names:
        return [name]
    if name != data.name:
        raise unknown_name("data set", name, data.names)
    return list(data.names)


def label(name: str) -> str:
    """Return a short name for tables."""
    if named_data(name) or name.startswith("hf:"):
        return name
    file = Path(name).name
    for ending in (".gz", *formats.FORMATS):
        file = file.removesuffix(ending)
    return file or name


def samples(
    records: Iterable[tuple[int, Record]], source: str, problems: Problems, *, chosen: RecordLayout | None = None
) -> Iterator[Sample]:
    """Make samples of records. Without a chosen layout, the layout of the first recognised record is used."""
    known, prefix = layouts(), label(source)
    seen: dict[str, int] = {}
    for line, record in records:
        chosen = chosen or next((each for each in known.values() if each.matches(record)), None)
        layout = chosen or known["columns"]
        try:
            sample = layout.sample(record)
        except (FloatLensError, LookupError, TypeError, ValueError) as error:
            failed = f"reader {layout.name} failed ({type(error).__name__}: {error})"
            problems.add(source, line, str(error) if isinstance(error, FloatLensError) else failed)
            continue
        if not isinstance(sample, Sample):
            raise FloatLensError(f"reader {layout.name} returned {type(sample).__name__}; expected a floatlens.Sample")
        sample = sample if sample.id else replace(sample, id=f"{prefix}-{line}")
        if sample.id in seen:
            problems.add(source, line, f"id {sample.id[:80]!r} was already used on line {seen[sample.id]}")
            continue
        seen[sample.id] = line
        yield sample


def take(items: Iterable[T], limit: int | None, seed: int | None = None) -> Iterator[T]:
    """Yield at most `limit` items: the first ones, or with a seed a fair draw that keeps their order.

    Without a seed, reading stops after `limit` items. With one, everything is read once and `limit` items are in memory
    (Vitter's algorithm R: every item is equally likely).

    >>> list(take("abcdef", 2)), list(take("abcdef", 2, seed=1))
    (['a', 'b'], ['b', 'f'])
    """
    if limit is None or seed is None:
        yield from islice(items, limit)
        return
    draw = random.Random(seed)
    held: list[tuple[int, T]] = []
    for index, item in enumerate(items):
        if len(held) < limit:
            held.append((index, item))
        elif (slot := draw.randrange(index + 1)) < limit:
            held[slot] = (index, item)
    yield from (item for _, item in sorted(held, key=lambda pair: pair[0]))


def _layout(
    layout: str | None, columns: Mapping[str, str] | None, reader: SampleFunction | None
) -> RecordLayout | None:
    if reader is not None:
        if layout or columns:
            given = "layout" if layout else "columns"
            raise FloatLensError(f"{given} cannot be combined with reader, which defines how records are read")
        return layout_of(reader)
    known = layouts()
    if columns:
        names: dict[str, Any] = {role: (name,) for role, name in columns.items()}
        return RecordLayout("columns", partial(known["columns"].sample, **names))
    if layout is not None and layout not in known:
        raise unknown_name("layout", layout, known)
    return known[layout] if layout else None


def _path(name: str, split: str | None) -> Path | None:
    path = Path(name)
    if path.is_dir():
        wanted = split or "test"
        files = sorted(file for file in path.glob(f"{wanted}.*") if formats.ending_of(file) in formats.FORMATS)
        if not files:
            raise FloatLensError(f"folder {name} has no file {wanted}.jsonl, .csv or .parquet; pass --split or a file")
        return files[0]
    if path.exists():
        if split is not None:
            raise FloatLensError(f"{name} is a single file and has no split {split!r}; leave out --split")
        return path
    if formats.ending_of(path) in formats.FORMATS or name.startswith((".", "/", "~")):
        raise FloatLensError(f"data file {name} does not exist; check the path")
    return None
