"""Parquet files, read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from floatlens.data.readers.fields import Record
from floatlens.data.readers.problems import Problems
from floatlens.data.readers.registry import FileFormat, register_reader
from floatlens.errors import FloatLensError

ROWS = 64


def records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield row numbers and rows."""
    import pyarrow
    import pyarrow.parquet

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
        raise FloatLensError(f"{path} is empty; expected one record per row")


register_reader(FileFormat("parquet", (".parquet",), records), priority=10)
