"""Arrays as JSON for the page: dtype, shape, and little-endian bytes as base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DTYPES = ("float16", "int32", "uint8")


def packed(array: Array, dtype: str) -> dict[str, Any]:
    """Encode an array as JSON.

    >>> packed(np.array([1, 2]), "int32")
    {'dtype': 'int32', 'shape': [2], 'data': 'AQAAAAIAAAA='}
    """
    assert dtype in DTYPES, dtype
    ordered = np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "shape": list(array.shape), "data": base64.b64encode(ordered.tobytes()).decode("ascii")}


def unpacked(value: dict[str, Any]) -> Array:
    """Decode the result of `packed`.

    >>> unpacked(packed(np.array([0.5, np.nan]), "float16"))
    array([0.5, nan], dtype=float16)
    """
    flat = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["dtype"]).newbyteorder("<"))
    return flat.reshape(value["shape"]).astype(value["dtype"])


def bits(flags: Array) -> dict[str, Any]:
    """Pack booleans into bits along the last axis, the first in the lowest bit.

    >>> unpacked(bits(np.array([True, False, False, True])))
    array([9], dtype=uint8)
    """
    return packed(np.packbits(flags, axis=-1, bitorder="little"), "uint8")
