"""CSV and TSV with a header line, plain or `.gz`. A cell that starts with `[` or `{` may contain JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatlens.data.readers.fields import Record
from floatlens.data.readers.lines import MAX_LINE, lines
from floatlens.data.readers.problems import Problems
from floatlens.data.readers.registry import FileFormat, register_reader
from floatlens.errors import FloatLensError

SEPARATORS = (";", "\t", ",", "|")


def records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield line numbers and rows by column."""
    separator = "\t" if ".tsv" in path.suffixes else ","
    csv.field_size_limit(
        MAX_LINE
    )  # limits the damage of an unclosed quote, which would otherwise read the rest of the file as one cell
    at = 0

    def texts() -> Iterator[str]:
        nonlocal at
        for number, line in lines(path, problems):
            at = number
            yield line + "\n"

    rows = csv.reader(texts(), delimiter=separator, strict=True)
    header: list[str] = []
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            problems.add(path.name, at, f"is not {'CSV' if separator == ',' else 'TSV'} ({error})")
            continue
        if not header:
            if not row:
                continue
            header = [name.strip() for name in row]
            if len(set(header)) < len(header):
                raise FloatLensError(f"{path}, line {at}: the header names a column twice; use unique column names")
            _check_separator(path, header, separator)
        elif not any(cell.strip() for cell in row):
            continue
        elif len(row) != len(header):
            problems.add(path.name, at, f"has {len(row)} cells; the header has {len(header)}")
        else:
            yield at, {name: _value(name, cell) for name, cell in zip(header, row, strict=True)}


def _check_separator(path: Path, header: list[str], separator: str) -> None:
    """Raise an error for a header that is one column, but several with another separator."""
    other = next((sign for sign in SEPARATORS if sign != separator and sign in header[0]), None)
    if len(header) == 1 and other:
        raise FloatLensError(
            f"{path} seems to have the separator {other!r}; a .csv file needs commas and a .tsv file tabs "
            f"(its header is one column, {header[0][:60]!r})"
        )


def _value(name: str, cell: str) -> Any:
    if not cell.strip():
        return None
    if cell.lstrip()[0] in "[{":
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return int(cell) if name == "gold" and cell.strip().isdecimal() else cell


register_reader(FileFormat("csv", (".csv", ".tsv"), records), priority=20)
