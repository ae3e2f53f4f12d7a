"""CSV and TSV with a header line, plain or `.gz`. A cell that starts with `[` or `{` may hold JSON, as for passages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatlens.data.readers.fields import Record
from floatlens.data.readers.lines import MAX_LINE, lines
from floatlens.data.readers.problems import Problems
from floatlens.errors import FloatLensError


def records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    tabs = ".tsv" in path.suffixes
    csv.field_size_limit(MAX_LINE)  # an unclosed quote would otherwise swallow the file; this bounds it
    at = 0

    def texts() -> Iterator[str]:
        nonlocal at
        for number, line in lines(path, problems):
            at = number
            yield line + "\n"

    rows = csv.reader(texts(), delimiter="\t" if tabs else ",", strict=True)
    header: list[str] = []
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            problems.add(path.name, at, f"is not {'TSV' if tabs else 'CSV'} ({error})")
            continue
        if not header:
            header = [name.strip() for name in row]
            if len(set(header)) < len(header):
                raise FloatLensError(f"{path}, line {at}: the header names a column twice; give each its own name")
        elif not any(cell.strip() for cell in row):
            continue
        elif len(row) != len(header):
            problems.add(path.name, at, f"has {len(row)} cells; the header has {len(header)}")
        else:
            yield at, {name: _value(name, cell) for name, cell in zip(header, row, strict=True)}


def _value(name: str, cell: str) -> Any:
    if not cell.strip():
        return None
    if cell.lstrip()[0] in "[{":
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return int(cell) if name == "gold" and cell.strip().isdecimal() else cell
