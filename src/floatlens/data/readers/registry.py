"""Which reader reads what: containers by the file's ending, layouts by the fields of its records.

To add a container or a layout: write its file beside this one and add it to `CONTAINERS` or `LAYOUTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from floatlens.data.readers import columns, delimited, hotpot, hub, jsonl, keyvalue, kilt, middle, parquet, world
from floatlens.data.readers.fields import Record
from floatlens.data.readers.problems import BadRecord, Problems
from floatlens.data.readers.sampling import take
from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError

CONTAINERS: dict[str, Callable[[Path, Problems], Iterator[tuple[int, Record]]]] = {
    ".jsonl": jsonl.records,
    ".json": jsonl.records,
    ".csv": delimited.records,
    ".tsv": delimited.records,
    ".parquet": parquet.records,
}


class Layout(NamedTuple):
    """How to see that a record has this layout, and how to make a sample of it."""

    matches: Callable[[Record], bool]
    sample: Callable[[Record, str], Sample]


LAYOUTS = {
    "middle": Layout(middle.matches, middle.sample),
    "keyvalue": Layout(keyvalue.matches, keyvalue.sample),
    "hotpot": Layout(hotpot.matches, hotpot.sample),
    "kilt": Layout(kilt.matches, kilt.sample),
    "columns": Layout(columns.matches, columns.sample),
}


@dataclass
class Reading:
    """A data set being read: iterate over it once; `problems` tells what was skipped so far."""

    name: str
    problems: Problems
    stream: Iterator[Sample]

    def __iter__(self) -> Iterator[Sample]:
        return self.stream


def read(
    name: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    layout: str | None = None,
    names: Mapping[str, str] | None = None,
    passages: int | None = None,
    gold_at: int | None = None,
    strict: bool = False,
) -> Reading:
    """Read a data set: a file, a folder with one file a split, `world`, `world:NAME`, or the name of a hub data set.

    `limit` takes the first samples, or with `seed` a fair draw of that many, in one pass and in the file's order.
    `names` maps the roles id, question, answers, passages, gold to columns. `passages` and `gold_at` are for the world,
    which makes its passages to order; other data bring their own.
    """
    if limit is not None and limit < 1:
        raise FloatLensError(f"limit {limit} is not a positive number; leave it out to read everything")
    problems = Problems(strict=strict)
    if name == "world" or name.startswith("world:"):
        rows = (
            world.samples(each, split, limit, passages=passages, gold_at=gold_at, seed=seed) for each in expand(name)
        )
        return Reading(name, problems, (sample for row in rows for sample in row))
    path = _path(name, split)
    records = records_of(path, problems) if path else hub.records(name.removeprefix("hf:"), split)
    made = samples(records, path.name if path else name, problems, layout=layout, names=names)
    return Reading(label(name), problems, _not_none(take(made, limit, seed), name, problems))


def expand(name: str) -> list[str]:
    """The single data sets that a name stands for."""
    return world.names(name) if name == "world" or name.startswith("world:") else [name]


def label(name: str) -> str:
    """A short name for tables and rows.

    >>> label("data/nq-open.jsonl.gz"), label("world:fresh")
    ('nq-open', 'world:fresh')
    """
    file = Path(name).name
    for ending in (".gz", *CONTAINERS):
        file = file.removesuffix(ending)
    return name if name.startswith(("world", "hf:")) or not file else file


def samples(
    records: Iterable[tuple[int, Record]],
    source: str,
    problems: Problems,
    *,
    layout: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[Sample]:
    """Samples of records; the layout is that of the first record which any layout knows, if it is not given."""
    chosen = _chosen(layout, names)
    seen: dict[str, int] = {}
    for line, record in records:
        chosen = chosen or next((each for each in LAYOUTS.values() if each.matches(record)), None)
        try:
            sample = (chosen or LAYOUTS["columns"]).sample(record, f"{label(source)}-{line}")
        except BadRecord as problem:
            problems.add(source, line, str(problem))
            continue
        if sample.id in seen:
            problems.add(source, line, f"id {sample.id[:80]!r} was already used on line {seen[sample.id]}")
            continue
        if any(c in sample.id for c in "/\\\0") or sample.id.startswith("."):
            problems.add(
                source, line, f"id {sample.id[:80]!r} has path characters; it is never used as a path", kept=True
            )
        seen[sample.id] = line
        yield sample


def _chosen(layout: str | None, names: Mapping[str, str] | None) -> Layout | None:
    if names:
        return Layout(columns.matches, partial(columns.sample, names=names))
    if layout is None:
        return None
    if layout not in LAYOUTS:
        raise FloatLensError(f"layout {layout!r} is not known; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]


def _path(name: str, split: str | None) -> Path | None:
    path = Path(name)
    if path.is_dir():
        wanted = split or "test"
        found = sorted(p for p in path.iterdir() if p.name.split(".")[0] == wanted and _ending(p) in CONTAINERS)
        if not found:
            raise FloatLensError(f"folder {name} has no file {wanted}.jsonl, .csv or .parquet; give --split or a file")
        return found[0]
    if path.exists():
        if split is not None:
            raise FloatLensError(f"split {split!r} was asked of the single file {name}; leave out --split")
        return path
    if _ending(path) in CONTAINERS or name.startswith((".", "/", "~")):
        raise FloatLensError(f"data file {name} is not there; check the path")
    return None


def records_of(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Line numbers and records of a file, by its ending."""
    ending = _ending(path)
    if ending not in CONTAINERS:
        known = ", ".join([*CONTAINERS, ".jsonl.gz"])
        raise FloatLensError(f"{path} has the ending {ending or 'none'!r}, which is not read; known are {known}")
    return CONTAINERS[ending](path, problems)


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _not_none(stream: Iterator[Sample], name: str, problems: Problems) -> Iterator[Sample]:
    count = 0
    for sample in stream:
        count += 1
        yield sample
    if not count:
        raise FloatLensError(f"{name} has no usable line ({problems.summary() or 'no record at all'})")
