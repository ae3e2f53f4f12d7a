"""Parquet, read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet

from floatlens.data.readers.fields import Record
from floatlens.data.readers.problems import Problems
from floatlens.errors import FloatLensError

ROWS = 64


def records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise FloatLensError(f"{path}, after row {number}: not a readable parquet file ({reason})") from None
    except OSError as error:
        raise FloatLensError(f"{path} cannot be read ({error}); check the path") from None
    if number == 0:
        raise FloatLensError(f"{path} is empty; expected one record a row")
