"""The files of a trace: a flat Zarr group of format 3, one folder per variable, metadata as JSON, compressed chunks.

They are written here and not by xarray, which takes 2.4 times as long for a trace of tiny-mdm (56 instead of 23 ms, more
than the model needs for a token) and 3.3 times for one of 12 MB, for the same size. Zarr reads them; `untrusted.check_zarr`
defines what they may contain.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, TypeAlias, cast

import google_crc32c
import numpy as np
import xarray as xr
from numcodecs import Blosc
from xarray.backends import BackendArray
from xarray.core import indexing

from floatlens.errors import FloatLensError
from floatlens.untrusted import CHECKSUM, CHECKSUM_BYTES, DATA_TYPES, metadata_checksum

Array: TypeAlias = np.ndarray[Any, Any]
CHUNK_BYTES = 4 << 20
LEVEL = 2  # 3 makes traces 1 % smaller, but takes half as long again (benchmarks.storage)
PER_POSITION = {"head", "kv_head", "position", "query", "key", "dim"}  # two of them make a variable large


def write_group(data: xr.Dataset, folder: Path, dtype: str) -> None:
    """Write a dataset into a folder; floats as `dtype`, float16 or float32, where `stored_type` allows it."""
    attributes = dict(data.attrs)
    beside = [str(name) for name in data.coords if name not in data.dims]
    if beside:
        attributes["coordinates"] = " ".join(beside)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        str(name): write_array(variable, folder / str(name), stored_type(variable, dtype))
        for name, variable in data.variables.items()
    }
    attributes = as_stored(attributes)
    attributes[CHECKSUM] = metadata_checksum(attributes, arrays)
    _write_json(folder, {"zarr_format": 3, "node_type": "group", "attributes": attributes})


def stored_type(variable: xr.Variable, dtype: str) -> np.dtype[Any]:
    """The type in which a variable is stored.

    Floats of single heads and matrices as `dtype`; if it is float16, all others as float32, as well as whole numbers (exact
    in float16 only up to 2048) and values that float16 cannot hold.
    """
    if variable.dtype.kind != "f":
        return variable.dtype
    if dtype == "float32" or variable.attrs.get("whole") or len(PER_POSITION.intersection(map(str, variable.dims))) < 2:
        return np.dtype(np.float32)
    values = variable.values
    largest = max(np.nanmax(values, initial=0.0), -np.nanmin(values, initial=0.0))
    return np.dtype(np.float16 if largest <= np.finfo(np.float16).max else np.float32)


def write_array(variable: xr.Variable, folder: Path, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Write one variable; returns its metadata.

    The steps of a number lie side by side, since few of its bits change from one step to the next. Bits are shuffled (the
    first of all numbers, then the second, and so on) and compressed by Zstandard; a checksum follows.
    """
    if dtype.name not in DATA_TYPES:
        raise FloatLensError(f"variable {folder.name!r} has the type {dtype}, which a trace cannot store; use numbers")
    values, chunk = variable.values, chunk_shape(variable.shape, dtype.itemsize)
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", "configuration": {"endian": "little"} if dtype.itemsize > 1 else {}}
    ]
    order = tuple(range(variable.ndim))
    if variable.ndim > 1 and variable.dims[0] == "step":
        order = (*order[1:], 0)
        codecs.insert(0, {"name": "transpose", "configuration": {"order": list(order)}})
    if variable.ndim:
        blosc = {"typesize": dtype.itemsize, "cname": "zstd", "clevel": LEVEL, "shuffle": "bitshuffle", "blocksize": 0}
        codecs.append({"name": "blosc", "configuration": blosc})
    codecs.append({"name": CHECKSUM})
    folder.mkdir(parents=True)
    about: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(variable.shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": False if dtype.kind == "b" else 0,
        "codecs": codecs,
        "attributes": dict(variable.attrs),
        "dimension_names": list(variable.dims),
        "storage_transformers": [],
    }
    about = as_stored(about)
    _write_json(folder, about)
    compressor = Blosc(cname="zstd", clevel=LEVEL, shuffle=Blosc.BITSHUFFLE)
    counts = [math.ceil(size / length) for size, length in zip(variable.shape, chunk, strict=True)]
    for key in itertools.product(*map(range, counts)):
        where = tuple(slice(n * length, (n + 1) * length) for n, length in zip(key, chunk, strict=True))
        part = values[where].astype(dtype.newbyteorder("<"), copy=False)
        missing = [(0, length - size) for length, size in zip(chunk, part.shape, strict=True)]
        if any(after for _, after in missing):  # chunks are whole, also at the end
            part = np.pad(part, missing)
        stored = np.ascontiguousarray(part.transpose(order))
        file = folder / ".".join(("c", *map(str, key)))
        packed = bytes(compressor.encode(stored)) if variable.ndim else stored.tobytes()
        file.write_bytes(packed + google_crc32c.value(packed).to_bytes(CHECKSUM_BYTES, "little"))
    return about


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Chunks of at most a few megabytes, with all steps of some layers, so that a layer is read in one piece.

    >>> chunk_shape((32, 32, 32, 732), 2), chunk_shape((10**7,), 4), chunk_shape((2, 0), 8)
    ((32, 2, 32, 732), (1048576,), (2, 1))
    """
    sizes = [max(1, size) for size in shape]
    for axis in (*range(1, len(sizes)), 0)[: len(sizes)]:
        rest = itemsize * math.prod(sizes) // sizes[axis]
        sizes[axis] = max(1, min(sizes[axis], CHUNK_BYTES // rest))
    return tuple(sizes)


def as_stored(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON object that will be read again: NumPy's numbers as plain ones, tuples as lists."""
    return dict(json.loads(json.dumps(value, default=lambda number: number.item(), allow_nan=False)))


def _write_json(folder: Path, value: dict[str, Any]) -> None:
    (folder / "zarr.json").write_text(json.dumps(value), encoding="utf-8")


def read_group(folder: Path) -> xr.Dataset:
    """The dataset of a group whose files were checked; arrays are read when they are used."""
    from zarr.storage import LocalStore  # not needed to write a trace, and slow to import

    data = xr.open_dataset(
        # A path with "::" in its name would be taken for a chain of URLs.
        cast(Any, LocalStore(folder, read_only=True)),
        engine="zarr",
        zarr_format=3,
        consolidated=False,
        mask_and_scale=False,
        decode_times=False,
        cache=False,
    )
    data.attrs.pop(CHECKSUM, None)
    lazy = {
        name: xr.Variable(
            one.dims,
            indexing.LazilyIndexedArray(StoredArray(one.variable, folder / str(name))),
            one.attrs,
            one.encoding,
        )
        for name, one in data.data_vars.items()
    }
    return data.assign(lazy)


class StoredArray(BackendArray):
    """An array on disk; only the requested part is read, float16 as float32 so that means are computed in float32."""

    def __init__(self, stored: xr.Variable, name: Path) -> None:
        self.stored, self.name, self.shape = stored, name, stored.shape
        self.dtype = np.dtype(np.float32) if stored.dtype == np.float16 else stored.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        try:
            return np.asarray(self.stored[key].values, self.dtype)
        except (ValueError, RuntimeError, OSError) as error:  # a checksum that does not match, a chunk that is no Blosc
            raise FloatLensError(f"{self.name} is damaged ({error}); copy or record the trace again") from None
