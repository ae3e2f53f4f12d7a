"""Read a data set: a file, a folder, the bundled world, or a data set of the Hub, as a stream of samples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from floatlens.data.readers.fields import BadRecord, Record
from floatlens.data.readers.formats import hub
from floatlens.data.readers.layouts import columns as read_columns
from floatlens.data.readers.registry import (
    Problems,
    RecordLayout,
    SampleFunction,
    ending_of,
    formats,
    layout_of,
    named_data,
    readers,
    records_of,
)
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError, unknown_name

T = TypeVar("T")


@dataclass
class SampleStream:
    """The samples of a data set, to be iterated once. `problems` lists the lines skipped so far."""

    name: str
    problems: Problems
    stream: Iterator[Sample]

    def __iter__(self) -> Iterator[Sample]:
        return self.stream


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
    records = records_of(path, problems) if path else hub(name.removeprefix("hf:"), split)
    made = samples(records, path.name if path else name, problems, chosen=_layout(layout, columns, reader))
    return SampleStream(label(name), problems, _not_empty(take(made, limit, seed), name, problems))


def expand(name: str) -> list[str]:
    """Return the individual data sets of a name."""
    data = named_data(name)
    return data.expand(name) if data else [name]


def label(name: str) -> str:
    """Return a short name for tables."""
    if named_data(name) or name.startswith("hf:"):
        return name
    file = Path(name).name
    for ending in (".gz", *formats()):
        file = file.removesuffix(ending)
    return file or name


def samples(
    records: Iterable[tuple[int, Record]], source: str, problems: Problems, *, chosen: RecordLayout | None = None
) -> Iterator[Sample]:
    """Make samples of records. Without a chosen layout, the layout of the first recognised record is used."""
    layouts, prefix = readers(RecordLayout), label(source)
    seen: dict[str, int] = {}
    for line, record in records:
        chosen = chosen or next((each for each in layouts.values() if each.matches(record)), None)
        try:
            sample = (chosen or layouts["columns"]).sample(record, f"{prefix}-{line}")
        except BadRecord as problem:
            problems.add(source, line, str(problem))
            continue
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
    given = [name for name, value in (("layout", layout), ("columns", columns), ("reader", reader)) if value]
    if reader is not None:
        if len(given) > 1:
            raise FloatLensError(f"{given[0]} cannot be combined with reader, which defines how records are read")
        return layout_of(reader)
    if columns:
        return RecordLayout("columns", partial(read_columns, names=columns))
    if layout is None:
        return None
    known = readers(RecordLayout)
    if layout not in known:
        raise unknown_name("layout", layout, known)
    return known[layout]


def _path(name: str, split: str | None) -> Path | None:
    path = Path(name)
    if path.is_dir():
        wanted = split or "test"
        files = sorted(p for p in path.iterdir() if p.name.split(".")[0] == wanted and ending_of(p) in formats())
        if not files:
            raise FloatLensError(f"folder {name} has no file {wanted}.jsonl, .csv or .parquet; pass --split or a file")
        return files[0]
    if path.exists():
        if split is not None:
            raise FloatLensError(f"{name} is a single file and has no split {split!r}; leave out --split")
        return path
    if ending_of(path) in formats() or name.startswith((".", "/", "~")):
        raise FloatLensError(f"data file {name} does not exist; check the path")
    return None


def _not_empty(stream: Iterator[Sample], name: str, problems: Problems) -> Iterator[Sample]:
    count = 0
    for sample in stream:
        count += 1
        yield sample
    if not count:
        raise FloatLensError(f"{name} has no usable line ({problems.summary() or 'no record at all'})")
