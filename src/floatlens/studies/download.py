"""The data behind a figure, embedded in the page as a compressed CSV that can be saved offline."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

ROOM = 1_500_000  # maximum characters per file; more than 300,000 rows of a heat map
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Download:
    """An embedded file, or the reason why there is none."""

    name: str
    address: str = ""
    rows: int = 0
    missing: str = ""


def csv_of(table: Path) -> Download:
    """Convert a parquet table to a compressed CSV in a data: URL.

    Text that a spreadsheet would run as a formula is prefixed with an apostrophe, since tokens may be anything.
    """
    frame = pd.read_parquet(table)
    for column in frame.columns:
        if frame[column].dtype == object or isinstance(frame[column].dtype, pd.StringDtype):
            frame[column] = frame[column].map(lambda cell: _quiet(cell) if isinstance(cell, str) else cell)
    text = frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)).decode("ascii")
    name = f"{table.stem}.csv"
    if len(packed) > ROOM:
        return Download(name, rows=len(frame), missing=f"too large for this page; it is {table.name} in the run folder")
    return Download(name, f"data:application/gzip;base64,{packed}", len(frame))


def _quiet(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text
