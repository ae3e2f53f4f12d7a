"""The one door for files from strangers: a run, a trace or a table that somebody sent may hold anything.

A file is read if it is a regular file, lies inside the folder that was opened (links resolved) and is not larger than a
limit; otherwise FloatLensError says which file it is and what to do.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from floatlens.errors import FloatLensError

MAX_FILE = 1 << 30  # bytes
MAX_JSON = 1 << 28
MAX_TABLE = 1 << 30  # bytes of a table in memory
SMALL, RATIO = (
    64 << 20,
    500,
)  # a compressed file may unpack to SMALL bytes, or RATIO times its size; text reaches about 10


def inside(path: str | Path, root: str | Path) -> Path:
    """Return the path with links resolved; raise an error if it leads out of `root`."""
    found, home = os.path.realpath(path), os.path.realpath(root)
    if found != home and not found.startswith(home.rstrip(os.sep) + os.sep):
        raise FloatLensError(f"{path} is a link that leads out of {root}; copy the file instead")
    return Path(found)


def read_bytes(path: str | Path, root: str | Path, limit: int = MAX_FILE) -> bytes:
    """Return the content of a regular file inside `root`; FileNotFoundError if there is none."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        descriptor = os.open(
            inside(path, root), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FloatLensError(f"{path} is a link that leads to itself; remove it") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a socket; a folder, on systems that cannot open one
            raise FloatLensError(f"{path} is not a regular file; remove it") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise FloatLensError(f"{path} is not a regular file; remove it")
        if state.st_size > limit:
            raise FloatLensError(f"{path} has {state.st_size:,} bytes; at most {limit:,} are read")
        return file.read(limit)


def read_json(path: str | Path, root: str | Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """Return the JSON object in a file; see `read_bytes`."""
    return parse_json(read_bytes(path, root, limit), str(path))


def parse_json(content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in the content of the file `name`."""
    try:
        found = json.loads(content.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FloatLensError(f"{name} is not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise FloatLensError(f"{name}: expected a JSON object, found {type(found).__name__}")
    return found


def read_parquet(path: str | Path, root: str | Path, limit: int = MAX_TABLE) -> pd.DataFrame:
    """Return a table; see `read_bytes`. One that would need more than `limit` bytes of memory is refused."""
    content = read_bytes(path, root)
    limit, total = min(limit, room(len(content))), 0
    for batch in parquet_batches(pyarrow.BufferReader(content), str(path), len(content), limit):
        total += text_bytes(batch)
        if total > limit:
            raise FloatLensError(f"{path} unpacks to more than {limit:,} bytes; it is damaged or not to be trusted")
    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pandas()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise FloatLensError(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from None


def parquet_batches(source: Any, name: str, size: int, limit: int, rows: int = 1024) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a parquet file of `size` bytes, a few at a time, each batch at most `limit` bytes in memory.

    Repeated texts stay in the dictionaries that the file stores them in: a kilobyte can repeat a megabyte a thousand times.
    """
    try:
        about = pyarrow.parquet.read_metadata(source)
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=0)
        if largest > room(size):
            raise FloatLensError(f"{name} unpacks to {largest:,} bytes; at most {room(size):,} are read from its size")
        columns = [groups[0].column(number) for number in range(about.num_columns)] if groups else []
        texts = [column.path_in_schema for column in columns if column.physical_type == "BYTE_ARRAY"]
        with pyarrow.parquet.ParquetFile(source, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=rows):
                if text_bytes(batch) > limit:
                    raise FloatLensError(
                        f"{name} unpacks to more than {limit:,} bytes in {batch.num_rows} rows; it is damaged or not to be "
                        f"trusted"
                    )
                yield batch
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise FloatLensError(f"{name} is not a readable parquet file ({str(error).splitlines()[0]})") from None


def text_bytes(array: Any) -> int:
    """Return the bytes of an array, or of a batch of columns, once the texts of its dictionaries are written out."""
    if isinstance(array, pyarrow.RecordBatch):
        return sum(text_bytes(column) for column in array.columns)
    if isinstance(array, pyarrow.DictionaryArray):
        lengths = pyarrow.compute.binary_length(array.dictionary).take(array.indices)
        return int(pyarrow.compute.sum(lengths).as_py() or 0)
    if isinstance(array, pyarrow.StructArray):
        return sum(text_bytes(field) for field in array.flatten())
    if isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray | pyarrow.FixedSizeListArray):
        return text_bytes(array.flatten())
    return int(array.nbytes)


def room(size: int) -> int:
    """Return how many bytes a compressed file of `size` bytes may unpack to.

    >>> room(1000), room(1_000_000)
    (67108864, 500000000)
    """
    return max(SMALL, RATIO * size)
