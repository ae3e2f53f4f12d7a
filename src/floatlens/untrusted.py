"""The one door for files from strangers: a run, a trace or a table that somebody sent may hold anything.

A file is read if it is a regular file, lies inside the folder that was opened (links resolved) and is not larger than a
limit; otherwise FloatLensError says which file it is and what to do.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from floatlens.errors import FloatLensError

MAX_FILE = 1 << 30  # bytes
MAX_JSON = 1 << 28
MAX_TABLE = 1 << 30  # bytes of a table in memory


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
    content = pyarrow.BufferReader(read_bytes(path, root))
    try:
        file = pyarrow.parquet.ParquetFile(content)
        about = file.metadata
        # A row is at most as large as its group, however often its values are repeated: so a batch stays below the limit.
        row = max((about.row_group(i).total_byte_size for i in range(about.num_row_groups)), default=1)
        batches, size = [], 0
        for batch in file.iter_batches(batch_size=max(1, min(1 << 16, limit // max(1, row)))):
            size += batch.nbytes
            if size > limit:
                raise FloatLensError(f"{path} unpacks to more than {limit:,} bytes; it is damaged or not to be trusted")
            batches.append(batch)
        return pyarrow.Table.from_batches(batches, file.schema_arrow).to_pandas()
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise FloatLensError(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from None
