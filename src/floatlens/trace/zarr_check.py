"""Check a stored trace before anything opens it.

Zarr's metadata name codecs and data types that are resolved to code: an array of objects with the codec `pickle` runs code
when it is read, and a store of Zarr's format 2 follows other rules. Metadata can also declare shapes that do not fit in
memory. So the JSON files of a store are read here first, and anything that FloatLens does not write is rejected.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from floatlens.errors import FloatLensError

DATA_TYPES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
CODECS = (["bytes"], ["bytes", "zstd"], ["bytes", "blosc"], ["transpose", "bytes", "blosc"])
CHECKSUM = "crc32c"  # the last codec of what FloatLens writes; earlier traces have none
CHECKSUM_BYTES = 4
SHUFFLES = ("bitshuffle", "shuffle")  # what FloatLens writes, and what it wrote before
BLOSC_ZSTD = 4  # the number of Zstandard in the flags of a Blosc file
ARRAY_FIELDS = {
    "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
    "attributes", "dimension_names", "storage_transformers",
}  # fmt: skip
GROUP_FIELDS = {"zarr_format", "node_type", "attributes"}
MAX_METADATA = 64 << 20  # bytes of one zarr.json; the vocabulary of a long trace takes a few hundred kilobytes
MAX_COORDINATES = 64 << 20  # bytes of all one-dimensional arrays, which xarray may read on opening
FREE_BYTES = 64 << 20  # declared bytes up to this size are not compared with the size on disk
MAX_RATIO = 1000  # declared bytes per byte on disk beyond that
MAX_CHUNKS = 1 << 16  # of a trace; Zarr takes about a kilobyte of memory per chunk, and a chunk that we write has 4 MB
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
REPEATED = 1  # type of a Zstandard block of one byte that is repeated


def check_store(path: str | Path) -> None:
    """Raise an error if a folder is not a trace as FloatLens writes it: one flat Zarr group of format 3.

    Raises
    ------
    FloatLensError
        Names the file and the field that are wrong.
    """
    root = Path(path)
    _check_files(root)
    group = _read(root / "zarr.json")
    _check_group(group, root / "zarr.json")
    declared = coordinates = chunks = held = 0
    metadata: dict[str, dict[str, Any]] = {}
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir()):
        file = folder / "zarr.json"
        if not file.is_file():
            raise FloatLensError(f"{folder} has no zarr.json; the trace is damaged or was not written by FloatLens")
        array = metadata[folder.name] = _read(file)
        size, dimensions = _check_array(array, file)
        declared += size
        coordinates += size if dimensions < 2 else 0
        chunks += math.prod(_chunk_counts(array))
        if chunks > MAX_CHUNKS:
            raise FloatLensError(f"{folder} declares {chunks:,} chunks; at most {MAX_CHUNKS:,} are read")
        held += _check_chunks(folder, array)
    if declared > FREE_BYTES and declared > MAX_RATIO * held:
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
    """The checksum of a group's attributes and of its arrays' metadata, which is itself an attribute."""
    described = [{name: value for name, value in attributes.items() if name != CHECKSUM}, arrays]
    return int(google_crc32c.value(json.dumps(described, sort_keys=True).encode()))


def _check_files(root: Path) -> None:
    """Raise an error for anything in the store that is not a file or folder: the size behind a link is not known."""
    for entry in root.rglob("*"):
        if entry.is_symlink():
            raise FloatLensError(f"{entry} is a link; a trace holds files only, so copy the file instead")
        if not entry.is_file() and not entry.is_dir():
            raise FloatLensError(f"{entry} is not a regular file; remove it")


def _check_chunks(folder: Path, array: dict[str, Any]) -> int:
    """Return the bytes of an array's chunks on disk.

    Raises an error for a chunk that is missing, that unpacks to more than the metadata declare, or whose unpacked size is
    unknown. Zarr reads a missing chunk as zeros. Only xarray's writer, which made the earliest traces and put chunks into
    folders, left out chunks of zeros.
    """
    expected = math.prod(array["chunk_grid"]["configuration"]["chunk_shape"]) * DATA_TYPES[array["data_type"]]
    codecs = [codec["name"] for codec in array["codecs"]]
    checksum = CHECKSUM_BYTES if codecs[-1] == CHECKSUM else 0
    held = 0
    for name in _chunk_names(array):
        chunk = folder / name
        if not chunk.is_file():
            if "/" in name:
                continue
            raise FloatLensError(f"{chunk} is missing, so the trace is damaged; copy or record it again")
        held += chunk.stat().st_size
        if "zstd" in codecs:
            size = unpacked_size(chunk)
        else:
            size = blosc_size(chunk, checksum) if "blosc" in codecs else chunk.stat().st_size - checksum
        if size is None:
            raise FloatLensError(f"{chunk} is damaged: it is not a complete Zstandard file")
        if size > expected:
            raise FloatLensError(f"{chunk} unpacks to {size:,} bytes; a chunk of its array has {expected:,}")
    return held


def _chunk_counts(array: dict[str, Any]) -> list[int]:
    """The number of chunks along each dimension."""
    shape, chunk = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
    return [math.ceil(size / length) for size, length in zip(shape, chunk, strict=True)]


def _chunk_names(array: dict[str, Any]) -> Iterator[str]:
    """The names of an array's chunks in its folder."""
    encoding = array.get("chunk_key_encoding", {"name": "default"})
    default = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if default else ".")
    for key in itertools.product(*map(range, _chunk_counts(array))):
        yield separator.join((["c"] if default else []) + [str(n) for n in key]) or "0"


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_METADATA:
            raise FloatLensError(f"{file} has {file.stat().st_size:,} bytes; at most {MAX_METADATA:,} are read")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FloatLensError(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise FloatLensError(f"{file} holds {type(found).__name__} where an object is expected")
    return found


def _check_group(found: dict[str, Any], file: Path) -> None:
    _expect(file, "zarr_format", found.get("zarr_format"), found.get("zarr_format") == 3, "3")
    _expect(file, "node_type", found.get("node_type"), found.get("node_type") == "group", "'group'")
    _refuse_unknown(found, GROUP_FIELDS | {"consolidated_metadata"}, file)
    if found.get("consolidated_metadata") is not None:
        raise FloatLensError(f"{file}: consolidated metadata is not read; store the trace again with FloatLens")
    _expect(file, "attributes", "…", isinstance(found.get("attributes", {}), dict), "an object")


def _check_array(found: dict[str, Any], file: Path) -> tuple[int, int]:
    """Return the bytes that an array declares and its number of dimensions."""
    _expect(file, "zarr_format", found.get("zarr_format"), found.get("zarr_format") == 3, "3")
    _expect(file, "node_type", found.get("node_type"), found.get("node_type") == "array", "'array'")
    _refuse_unknown(found, ARRAY_FIELDS, file)
    dtype = found.get("data_type")
    _expect(file, "data_type", dtype, isinstance(dtype, str) and dtype in DATA_TYPES, "a plain number type")
    shape = found.get("shape")
    _expect(file, "shape", shape, _is_shape(shape, 0), "a list of integers")
    grid = found.get("chunk_grid")
    regular = isinstance(grid, dict) and grid.get("name") == "regular" and isinstance(grid.get("configuration"), dict)
    chunks = grid["configuration"].get("chunk_shape") if regular and isinstance(grid, dict) else None
    assert isinstance(shape, list)
    fits = isinstance(chunks, list) and _is_shape(chunks, 1) and len(chunks) == len(shape)
    fits = (
        fits
        and isinstance(chunks, list)
        and all(chunk <= max(1, size) for chunk, size in zip(chunks, shape, strict=True))
    )
    _expect(file, "chunk_grid", grid, fits, "regular chunks of at least 1 and at most the shape")
    codecs = found.get("codecs")
    known = isinstance(codecs, list) and all(isinstance(codec, dict) for codec in codecs)
    listed = [codec.get("name") for codec in codecs or []] if known else []
    known = known and (listed[:-1] if listed[-1:] == [CHECKSUM] and "zstd" not in listed else listed) in CODECS
    known = known and all(_is_known_blosc(codec) for codec in codecs or [] if codec["name"] == "blosc")
    known = known and all(_is_order(codec, len(shape)) for codec in codecs or [] if codec["name"] == "transpose")
    _expect(file, "codecs", codecs, known, "'bytes', or 'bytes' and 'zstd' or 'blosc' with Zstandard")
    keys = found.get("chunk_key_encoding", {"name": "default"})
    settings = keys.get("configuration", {}) if isinstance(keys, dict) else None
    plain = isinstance(keys, dict) and keys.get("name") in ("default", "v2") and isinstance(settings, dict)
    plain = plain and isinstance(settings, dict) and settings.get("separator", "/") in ("/", ".")
    _expect(file, "chunk_key_encoding", keys, plain, "'default' or 'v2'")
    _expect(file, "storage_transformers", "…", not found.get("storage_transformers"), "nothing")
    _expect(file, "attributes", "…", isinstance(found.get("attributes", {}), dict), "an object")
    names = found.get("dimension_names", [None] * len(shape))
    named = isinstance(names, list) and len(names) == len(shape) and all(n is None or isinstance(n, str) for n in names)
    _expect(file, "dimension_names", names, named, "one name per dimension")
    return math.prod(shape) * DATA_TYPES[str(dtype)], len(shape)


def _is_known_blosc(codec: dict[str, Any]) -> bool:
    settings = codec.get("configuration")
    return isinstance(settings, dict) and settings.get("cname") == "zstd" and settings.get("shuffle") in SHUFFLES


def _is_order(codec: dict[str, Any], dimensions: int) -> bool:
    """Whether a transposition names each dimension once."""
    settings = codec.get("configuration")
    order = settings.get("order") if isinstance(settings, dict) else None
    return isinstance(order, list) and all(type(n) is int for n in order) and sorted(order) == list(range(dimensions))


def _is_shape(value: Any, least: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 8
        and all(isinstance(n, int) and not isinstance(n, bool) and least <= n < 2**40 for n in value)
    )


def _expect(file: Path, field: str, value: Any, fine: bool, expected: str) -> None:
    if not fine:
        raise FloatLensError(f"{file}: field {field!r} is {str(value)[:80]!r}; FloatLens reads {expected}")


def _refuse_unknown(found: dict[str, Any], known: set[str], file: Path) -> None:
    unknown = sorted(str(name) for name in found if name not in known)
    if unknown:
        raise FloatLensError(
            f"{file}: field {unknown[0][:80]!r} is unknown; only traces written by FloatLens are opened"
        )


def unpacked_size(file: Path) -> int | None:
    """Return the size that a Zstandard file unpacks to, from its headers alone (RFC 8878).

    It is the sum of the sizes that the frames declare; None if one declares none, or if the file is damaged. A few kilobytes
    can unpack to gigabytes, and numcodecs allocates whatever the file declares.
    """
    total, end = 0, file.stat().st_size
    with file.open("rb") as stream:
        while stream.tell() < end:
            header = stream.read(5)
            if len(header) < 5 or header[:4] != ZSTD_MAGIC:
                return None
            flags = header[4]
            single = flags >> 5 & 1
            width = (single, 2, 4, 8)[flags >> 6]
            fields = stream.read((1 - single) + (0, 1, 2, 4)[flags & 3] + width)
            if not width:
                return None
            total += int.from_bytes(fields[-width:], "little") + (256 if width == 2 else 0)
            last = 0
            while not last:
                block = stream.read(3)
                if len(block) < 3:
                    return None
                number = int.from_bytes(block, "little")
                last, kind, size = number & 1, number >> 1 & 3, number >> 3
                stream.seek(1 if kind == REPEATED else size, 1)
            stream.seek(4 if flags & 4 else 0, 1)  # the checksum
        return total if stream.tell() == end else None


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
