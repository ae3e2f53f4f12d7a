"""The one door for files from strangers: a run, a trace or a table that somebody sent may hold anything.

A file is read if it is a regular file, lies inside the folder that was opened (links resolved) and is not larger than a
limit; otherwise FloatLensError says which file it is and what to do.
"""

from __future__ import annotations

import errno
import json
import math
import operator
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain, product, repeat
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import google_crc32c
import pandas as pd
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from floatlens.errors import FloatLensError

Record = TypeVar("Record")
MAX_FILE = 1 << 30  # bytes
MAX_JSON = 1 << 28
MAX_TABLE = 1 << 30  # bytes of a table in memory
SMALL, RATIO = 64 << 20, 500  # a compressed file may unpack to SMALL bytes, or RATIO times its size (text: about 10)

# What a stored trace may hold: one flat Zarr group of format 3, arrays of plain numbers, these codecs.
DATA_TYPES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
CODECS = (["bytes"], ["bytes", "blosc"], ["transpose", "bytes", "blosc"])
CHECKSUM = "crc32c"  # the last codec of what FloatLens writes; earlier traces have none
CHECKSUM_BYTES = 4
BLOSC_ZSTD = 4  # the number of Zstandard in the flags of a Blosc file
SIZE = range(2**40)
GROUP: dict[str, Any] = {
    "zarr_format": 3, "node_type": "group", "attributes": {str: object}, "consolidated_metadata": None,
}  # fmt: skip
ARRAY: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [SIZE],
    "data_type": tuple(DATA_TYPES),
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [SIZE[1:]]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
    "fill_value": object,
    "codecs": [
        (
            {"name": "bytes"},
            {"name": "transpose", "configuration": {"order": [SIZE]}},
            {"name": "blosc", "configuration": {"cname": "zstd", "shuffle": "bitshuffle"}},
            {"name": CHECKSUM},
        )
    ],
    "attributes": {str: object},
    "dimension_names": [(None, str)],
    "storage_transformers": (None, [()]),  # an empty list
}
OPTIONAL = ("attributes", "consolidated_metadata", "fill_value", "dimension_names", "storage_transformers")
MAX_METADATA = 64 << 20  # bytes of one zarr.json; the vocabulary of a long trace takes a few hundred kilobytes
MAX_COORDINATES = 64 << 20  # bytes of all one-dimensional arrays, which xarray may read on opening
MAX_ZARR_RATIO = 1000  # declared bytes per byte on disk; a constant array compresses better than a file of text
MAX_CHUNKS = 1 << 16  # of a trace; Zarr takes about a kilobyte of memory per chunk, and a chunk that we write has 4 MB


def inside(path: str | Path, root: str | Path, *also: str | Path) -> Path:
    """Return the path with links resolved; raise an error if it leads out of `root`, and into none of `also`."""
    resolved = os.path.realpath(path)
    for home in map(os.path.realpath, (root, *also)):
        if resolved == home or resolved.startswith(home.rstrip(os.sep) + os.sep):
            return Path(resolved)
    raise FloatLensError(f"{path} is a link that leads out of {root}; copy the file instead")


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
        value = json.loads(content.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FloatLensError(f"{name} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise FloatLensError(f"{name}: expected a JSON object, found {type(value).__name__}")
    return value


def matches(value: Any, schema: Any) -> bool:
    """Whether a value from JSON is what a schema describes.

    A schema is a type (`object` for anything), a value, a range of whole numbers, or a tuple of alternatives; [X] is a list
    of X, {str: X} an object with values X, and {"name": X} an object with this field.

    >>> matches(["a"], [str]), matches({"a": None}, {str: str}), matches(3, range(2))
    (True, False, False)
    """
    if isinstance(schema, tuple):
        return any(matches(value, one) for one in schema)
    if isinstance(schema, list):
        return isinstance(value, list) and all(matches(one, schema[0]) for one in value)
    if isinstance(schema, dict) and str in schema:
        return isinstance(value, dict) and all(matches(one, schema[str]) for one in value.values())
    if isinstance(schema, dict):
        return isinstance(value, dict) and all(n in value and matches(value[n], one) for n, one in schema.items())
    if isinstance(schema, range):
        return type(value) is int and value in schema
    return schema is object or (type(value) is schema if isinstance(schema, type) else value == schema)


def make_record(kind: type[Record], value: Mapping[str, Any], name: str) -> Record:
    """Return the dataclass of a JSON object; an error names the field that is missing, unknown or of another type."""
    hints = get_type_hints(kind)
    known = {one.name: hints[one.name] for one in fields(kind)}  # type: ignore[arg-type]
    for key, given in value.items():
        if key not in known:
            raise FloatLensError(f"{name}: field {str(key)[:80]!r} is unknown; it was not written by this version")
        if not matches(given, _schema(known[key])):
            raise FloatLensError(f"{name}: field {key!r} is {str(given)[:80]!r}, which is not {known[key]}")
    try:
        return kind(**value)
    except TypeError as error:
        raise FloatLensError(f"{name} is not complete ({error})") from None


def _schema(hint: Any) -> Any:
    """Return the schema of a field's type, for `matches`.

    >>> matches([1.5, 2], _schema(list[float])), matches(None, _schema(str | None)), matches(True, _schema(int))
    (True, True, False)
    """
    if get_origin(hint) in (Union, UnionType):
        return tuple(map(_schema, get_args(hint)))
    if get_origin(hint) is list:
        return [_schema(get_args(hint)[0])]
    return {Any: object, float: (int, float)}.get(hint, get_origin(hint) or hint)


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
        with pyarrow.OSFile(source) if isinstance(source, str) else source as file:
            about = pyarrow.parquet.read_metadata(file)
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            columns = [[group.column(number) for number in range(about.num_columns)] for group in groups]
            if sum(column.total_compressed_size for group in columns for column in group) > size:
                raise FloatLensError(f"{name} claims more bytes than it has; it is damaged or not to be trusted")
            widths = [about.schema.column(number).length or 8 for number in range(about.num_columns)]
            largest = max((sum(map(_unpacked_bytes, repeat(file), group, widths)) for group in columns), default=0)
            if largest > room(size):
                raise FloatLensError(
                    f"{name} unpacks to {largest:,} bytes; at most {room(size):,} are read from its size"
                )
            texts = {one.path_in_schema for group in columns for one in group if one.physical_type == "BYTE_ARRAY"}
            table = pyarrow.parquet.ParquetFile(file, read_dictionary=list(texts))
            # One group after the other: pyarrow cannot put lists of two groups into one batch.
            for batch in chain.from_iterable(table.iter_batches(rows, [number]) for number in range(len(groups))):
                if text_bytes(batch) > limit:
                    raise FloatLensError(
                        f"{name} unpacks to more than {limit:,} bytes in {batch.num_rows} rows; it is damaged or not to be "
                        f"trusted"
                    )
                yield batch
    except (OSError, ValueError, TypeError, RecursionError, pyarrow.ArrowException) as error:
        raise FloatLensError(f"{name} is not a readable parquet file ({str(error).splitlines()[0]})") from None


def _unpacked_bytes(file: Any, column: Any, width: int) -> int:
    """Return the bytes of a column in memory, from the headers of its pages: the sizes in the footer may be lies."""
    start = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
    end, total = start + column.total_compressed_size, 0
    while column.num_values and start < end:
        file.seek(start)
        page = _read_thrift(file)
        # Fields 2 and 3 are the page's sizes; one struct says how many values it has, for data or for a dictionary.
        unpacked, packed = page.get(2, -1), page.get(3, -1)
        if unpacked < 0 or packed < 0:
            raise ValueError("a page has no size")
        values = max((part.get(1, 0) for part in page.values() if isinstance(part, dict)), default=0)
        total += max(unpacked, width * values)  # one byte can stand for many equal values
        start = file.tell() + packed
    return total


def _read_thrift(file: Any) -> dict[int, Any]:
    """Return the fields of a struct in Thrift's compact protocol by number, texts left out.

    >>> import io
    >>> _read_thrift(io.BytesIO(bytes([0x15, 0x02, 0x25, 0xAC, 0x02, 0x1C, 0x11, 0, 0])))
    {1: 1, 3: 150, 4: {1: True}}
    """
    found: dict[int, Any] = {}
    number = 0
    while byte := _read_byte(file):
        kind, before = byte & 15, number
        number = before + (byte >> 4) if byte >> 4 else _read_varint(file) >> 1
        if number <= before:  # a second value, which another reader might take for the first
            raise ValueError(f"the header of a page has the field {number} after the field {before}")
        if kind in (1, 2):
            found[number] = kind == 1
        elif kind in (4, 5, 6):
            value = _read_varint(file)
            found[number] = value >> 1 ^ -(value & 1)
        elif kind == 8:
            file.seek(_read_varint(file), os.SEEK_CUR)
        elif kind == 12:
            found[number] = _read_thrift(file)
        else:
            raise ValueError(f"the header of a page has a field of type {kind}")
    return found


def _read_varint(file: Any) -> int:
    """Return an integer of seven bits per byte."""
    value = 0
    for shift in range(0, 64, 7):
        byte = _read_byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("the header of a page has a number of more than 64 bits")


def _read_byte(file: Any) -> int:
    byte = file.read(1)
    if not byte:
        raise ValueError("the header of a page is cut off")
    return int(byte[0])


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
    """Return how many bytes a compressed file of `size` bytes may unpack to."""
    return max(SMALL, RATIO * size)


def check_zarr(path: str | Path) -> None:
    """Raise an error if a folder is not a trace as FloatLens writes it: one flat Zarr group of format 3.

    Zarr's metadata name codecs and data types that are resolved to code: an array of objects with the codec `pickle` runs
    code when it is read. Metadata can also declare shapes that do not fit in memory. So the JSON files are read here first,
    and what FloatLens does not write is refused, with the file and the field.
    """
    root = Path(path)
    for entry in root.rglob("*"):
        if entry.is_symlink():  # the size behind a link is not known
            raise FloatLensError(f"{entry} is a link; a trace holds files only, so copy the file instead")
        if not entry.is_file() and not entry.is_dir():
            raise FloatLensError(f"{entry} is not a regular file; remove it")
    group = _read_metadata(root / "zarr.json", GROUP)
    declared = coordinates = chunks = held = 0
    metadata: dict[str, dict[str, Any]] = {}
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        array = metadata[folder.name] = _check_array(folder)
        size = math.prod(array["shape"]) * DATA_TYPES[array["data_type"]]
        declared += size
        coordinates += size if len(array["shape"]) < 2 else 0
        chunks += math.prod(_chunk_counts(array))
        if chunks > MAX_CHUNKS:
            raise FloatLensError(f"{folder} declares {chunks:,} chunks; at most {MAX_CHUNKS:,} are read")
        held += _check_chunks(folder, array)
    if declared > max(SMALL, MAX_ZARR_RATIO * held):
        raise FloatLensError(
            f"{root} declares arrays of {declared:,} bytes but holds {held:,}; it is damaged or not to be trusted"
        )
    if coordinates > MAX_COORDINATES:
        raise FloatLensError(
            f"{root} declares {coordinates:,} bytes of one-dimensional arrays; at most {MAX_COORDINATES:,} are read"
        )
    attributes = group.get("attributes", {})
    if CHECKSUM in attributes and attributes[CHECKSUM] != metadata_checksum(attributes, metadata):
        raise FloatLensError(f"{root} is damaged: its metadata do not match their checksum; copy or record it again")


def metadata_checksum(attributes: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the checksum of a group's attributes and of its arrays' metadata, which is itself an attribute."""
    described = [{name: value for name, value in attributes.items() if name != CHECKSUM}, arrays]
    return int(google_crc32c.value(json.dumps(described, sort_keys=True).encode()))


def _check_array(folder: Path) -> dict[str, Any]:
    """Return the metadata of an array, which are as FloatLens writes them."""
    file = folder / "zarr.json"
    if not file.is_file():
        raise FloatLensError(f"{folder} has no zarr.json; the trace is damaged or was not written by FloatLens")
    array = _read_metadata(file, ARRAY)
    shape, chunk = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = [codec["name"] for codec in array["codecs"]]
    orders = [codec["configuration"]["order"] for codec in array["codecs"] if codec["name"] == "transpose"]
    fine = {
        "shape": len(shape) <= 8,
        "chunk_grid": len(chunk) == len(shape) and all(map(operator.le, chunk, (max(1, size) for size in shape))),
        "codecs": (codecs[:-1] if codecs[-1:] == [CHECKSUM] else codecs) in CODECS
        and all(sorted(order) == list(range(len(shape))) for order in orders),
        "dimension_names": len(array.get("dimension_names", shape)) == len(shape),
    }
    for name in (name for name in fine if not fine[name]):
        raise _unexpected(file, array, name)
    return array


def _read_metadata(file: Path, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a zarr.json, each of which is what its schema describes."""
    found = read_json(file, file.parent, MAX_METADATA)
    for name in found.keys() - schema.keys():
        raise FloatLensError(f"{file}: field {name[:80]!r} is unknown; only traces written by FloatLens are opened")
    for name, expected in schema.items():
        if not (name not in found and name in OPTIONAL) and not matches(found.get(name), expected):
            raise _unexpected(file, found, name)
    return found


def _unexpected(file: Path, fields: Mapping[str, Any], name: str) -> FloatLensError:
    return FloatLensError(
        f"{file}: field {name!r} is {str(fields.get(name))[:80]!r}; FloatLens reads only what it writes"
    )


def _check_chunks(folder: Path, array: dict[str, Any]) -> int:
    """Return the bytes of an array's chunks on disk.

    Raises an error for a chunk that is missing, which Zarr would read as zeros, that unpacks to more than the metadata
    declare, or whose unpacked size is unknown.
    """
    expected = math.prod(array["chunk_grid"]["configuration"]["chunk_shape"]) * DATA_TYPES[array["data_type"]]
    codecs = [codec["name"] for codec in array["codecs"]]
    checksum = CHECKSUM_BYTES if codecs[-1] == CHECKSUM else 0
    held = 0
    for name in _chunk_names(array):
        chunk = folder / name
        if not chunk.is_file():
            raise FloatLensError(f"{chunk} is missing, so the trace is damaged; copy or record it again")
        held += chunk.stat().st_size
        size = blosc_size(chunk, checksum) if "blosc" in codecs else chunk.stat().st_size - checksum
        if size is None:
            raise FloatLensError(f"{chunk} is damaged: it is not a complete Blosc file of Zstandard blocks")
        if size > expected:
            raise FloatLensError(f"{chunk} unpacks to {size:,} bytes; a chunk of its array has {expected:,}")
    return held


def _chunk_counts(array: dict[str, Any]) -> list[int]:
    """The number of chunks along each dimension."""
    shape, chunk = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
    return [math.ceil(size / length) for size, length in zip(shape, chunk, strict=True)]


def _chunk_names(array: dict[str, Any]) -> Iterator[str]:
    """The names of an array's chunks in its folder."""
    for key in product(*map(range, _chunk_counts(array))):
        yield ".".join(("c", *map(str, key)))


def blosc_size(file: Path, after: int = 0) -> int | None:
    """Return the size that a Blosc file of Zstandard blocks unpacks to, from its header; None if it is damaged.

    `after` is the number of bytes that follow it in the file.
    """
    with file.open("rb") as stream:
        header = stream.read(16)
    size = file.stat().st_size - after
    if len(header) < 16 or header[2] >> 5 != BLOSC_ZSTD or int.from_bytes(header[12:], "little") != size:
        return None
    return int.from_bytes(header[4:8], "little")
