"""Read pickled NumPy arrays without running code from the pickle.

A pickle names functions to call and states to set. Even NumPy's own constructors are not safe: `dtype.__setstate__` takes
flags from the file, so a void type with an object field would read bytes of the file as pointers. The stand-ins here accept
the same calls and keep plain values only; arrays are rebuilt from their bytes.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from typing import Any

import numpy as np

from floatlens.errors import FloatLensError

MAX_DEPTH = 64
MAX_EMPTY = 1 << 16  # elements of an array without bytes
PLAIN = re.compile(r"[<>|=]?(?:[biufcSU]\d{1,9}|O8?|O)")  # numbers, text, objects: no fields, no void, no dates


class _DType:
    """Stand-in for numpy.dtype: a plain kind and a size; a byte order may follow as state."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not PLAIN.fullmatch(code):
            raise FloatLensError(f"the file holds an array of type {str(code)[:40]!r}; only numbers and text are read")
        self.code, self.order = code.lstrip("<>|="), "="

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise FloatLensError("the file holds an array with fields; only numbers and text are read")
        if state[1] not in ("<", ">", "|", "="):
            raise FloatLensError(f"the file holds an array of byte order {str(state[1])[:10]!r}, which is not valid")
        self.order = state[1] if state[1] != "|" else "="

    def resolve(self) -> np.dtype[Any]:
        return np.dtype("O") if self.code.startswith("O") else np.dtype(self.order + self.code)


class _NDArray:
    """Stand-in for numpy.ndarray until its state has been checked."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise FloatLensError("the file holds an array whose state is not in NumPy's format")
        _, shape, dtype, fortran, data = state
        if not (
            isinstance(shape, tuple) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**40 for n in shape)
        ):
            raise FloatLensError(f"the file holds an array of shape {str(shape)[:60]}, which is not valid")
        if not isinstance(dtype, _DType):
            raise FloatLensError("the file holds an array without a type")
        kind, count = dtype.resolve(), math.prod(shape)
        if kind.hasobject:
            if not isinstance(data, list) or len(data) != count:
                raise FloatLensError(f"the file holds an array of {count} objects, but a different number of values")
            self.value = (shape, data)
        elif not isinstance(data, bytes):
            raise FloatLensError(f"the file holds an array of shape {shape} without its numbers")
        else:
            self.value = make_array(data, shape, kind, bool(fortran))


def make_array(data: bytes, shape: tuple[int, ...], kind: np.dtype[Any], fortran: bool) -> np.ndarray[Any, Any]:
    """The array of these bytes. An empty one may not be wide: (0, 10**9) would be taken for a long sequence."""
    count = math.prod(shape)
    if len(data) != count * kind.itemsize:
        raise FloatLensError(f"the file holds an array of shape {shape} whose number of bytes does not match")
    if math.prod(max(1, n) for n in shape) > max(MAX_EMPTY, len(data)):
        raise FloatLensError(f"the file holds an empty array of shape {shape}; it is not opened")
    flat = np.frombuffer(data, kind) if kind.itemsize else np.zeros(count, kind)
    return flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: Any) -> _NDArray:
    return _NDArray()


def _scalar(dtype: Any, data: Any = b"") -> Any:
    if not isinstance(dtype, _DType) or not isinstance(data, bytes):
        raise FloatLensError("the file holds a number without a type")
    kind = dtype.resolve()
    if kind.hasobject or len(data) != kind.itemsize or not data:
        raise FloatLensError(f"the file holds a number of type {kind} whose number of bytes does not match")
    return np.frombuffer(data, kind)[0]


STAND_INS: dict[tuple[str, str], Any] = {
    **{(f"{package}.multiarray", "_reconstruct"): _reconstruct for package in ("numpy.core", "numpy._core")},
    **{(f"{package}.multiarray", "scalar"): _scalar for package in ("numpy.core", "numpy._core")},
    ("numpy", "ndarray"): _NDArray,
    ("numpy", "dtype"): _DType,
}


class NumpyUnpickler(pickle._Unpickler):
    """Read arrays, scalars and plain containers; raise an error that names anything else.

    This subclasses the unpickler written in Python: the C version allocates memory for the largest memo index in a file.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise FloatLensError(
                f"the file asks to call {module}.{name}, which is not a NumPy constructor; it is not opened"
            )
        return STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise FloatLensError("the file refers to an object outside itself; it is not opened")


def load(stream: io.BytesIO) -> Any:
    """Read one pickled value of arrays, numbers, text, lists, tuples and dictionaries."""
    return _unwrap(NumpyUnpickler(stream).load(), {}, 0)


def _unwrap(value: Any, done: dict[int, Any], depth: int) -> Any:
    """Replace stand-ins by arrays. Every object is converted once, so shared references cost nothing."""
    if depth > MAX_DEPTH:
        raise FloatLensError(f"the file nests values more than {MAX_DEPTH} levels deep; it is not opened")
    if isinstance(value, _DType):
        return str(value.resolve())
    if not isinstance(value, list | tuple | dict | _NDArray):
        return value
    if id(value) not in done:
        made: Any
        if isinstance(value, dict):
            made = {_unwrap(k, done, depth + 1): _unwrap(v, done, depth + 1) for k, v in value.items()}
        elif isinstance(value, list | tuple):
            made = type(value)(_unwrap(each, done, depth + 1) for each in value)
        elif isinstance(value.value, tuple):
            shape, items = value.value
            flat = np.empty(len(items), object)
            for index, item in enumerate(items):
                flat[index] = _unwrap(item, done, depth + 1)
            made = flat.reshape(shape)
        else:
            made = value.value
        done[id(value)] = made
    return done[id(value)]
