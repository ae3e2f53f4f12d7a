"""Import traces from the paper's own .npz files, which hold pickled object arrays, without running code from the pickles.

A pickle names functions to call and states to set. Even NumPy's own constructors are not safe: `dtype.__setstate__` takes
flags from the file, so a void type with an object field would read bytes of the file as pointers. The stand-ins at the end
accept the same calls and keep plain values only; arrays are rebuilt from their bytes.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floatlens.data.prompt import Prompt
from floatlens.decode.step import Step
from floatlens.errors import FloatLensError
from floatlens.trace.attributes import check_attributes, check_dimensions
from floatlens.trace.recorder import ModelFacts
from floatlens.trace.trace import UNREADABLE, Trace
from floatlens.trace.weights import trace_of_weights
from floatlens.untrusted import room

LARGEST = 8 << 30  # largest size in bytes of the unpacked members of a file
MAX_DEPTH = 64
MAX_EMPTY = 1 << 16  # elements of an array without bytes
PLAIN = re.compile(r"[<>|=]?(?:[biufcSU]\d{1,9}|O8?|O)")  # numbers, text, objects: no fields, no void, no dates
Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]
# Tokens by step, weights by step and layer, names of statistics, and what else `trace_of_weights` takes.
Contents = tuple[torch.Tensor, list[dict[int, torch.Tensor]], tuple[str, ...], dict[str, Any]]
NOT_READABLE = (*UNREADABLE, EOFError, ImportError, AssertionError, pickle.UnpicklingError, struct.error)


def read_npz(path: str | Path) -> Arrays:
    """Read the arrays of an .npz file; an object array with a single object is returned as that object."""
    path = Path(path)
    if not path.is_file():
        raise FloatLensError(f"{path} does not exist; pass an .npz file written by the paper's scripts")
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
            most = min(LARGEST, room(path.stat().st_size))
            if total > most:
                raise FloatLensError(f"{path} unpacks to {total:,} bytes; at most {most:,} are read")
            return {m.removesuffix(".npy"): _array(archive.read(m), path, m) for m in archive.namelist()}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise FloatLensError(f"{path} is not a readable .npz file: {error}") from None


def _array(raw: bytes, path: Path, member: str) -> Any:
    stream = io.BytesIO(raw)
    try:
        major, _ = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if dtype.hasobject:
            value = unpickle(stream)
            return value.item() if isinstance(value, np.ndarray) and value.shape == () else value
        return make_array(raw[stream.tell() :], shape, dtype, fortran)
    except NOT_READABLE as error:
        raise FloatLensError(f"{path}: its member {member} is not a readable array: {error}") from None


def import_npz(path: str | Path, *, model: str = "", kind: str = "mdm") -> Trace:
    """Make a Trace from the file `path`, written by the paper's scripts.

    Step data gives head-averaged attention per step (head -1); without it, the full matrices give a single step, per head
    if the file has heads. Queries and keys give the QK factors, where query head h uses key head h // (H / H_kv). `model`
    is the name of the model to store in the trace, `kind` its kind ("mdm" or "arm").
    """
    arrays = read_npz(path)
    try:
        return _to_trace(arrays, Path(path), model, kind)
    except NOT_READABLE as error:
        raise FloatLensError(f"{path} is not laid out as the paper's files: {type(error).__name__} {error}") from None


def _to_trace(arrays: Arrays, path: Path, model: str, kind: str) -> Trace:
    steps = arrays.get("step_attention_data")
    made = _from_steps(steps) if steps is not None and len(steps) else _from_matrices(arrays, path)
    tokens_ST, weights, names, more = made
    prompt, T = int(_plain(arrays.get("input_length", 0))), tokens_ST.shape[1]
    if not 0 <= prompt <= T:
        raise ValueError(f"input_length is {prompt}, but there are {T} positions")
    after_ST = torch.cat([tokens_ST[1:], tokens_ST[-1:]])
    committed_ST = tokens_ST != after_ST
    committed_ST[-1] = ~committed_ST.any(0)  # what no step replaced was written by the last one
    committed_ST[:, :prompt] = False
    unknown_BT = torch.full((1, T), torch.nan)
    rows = zip(tokens_ST[:, None], after_ST[:, None], committed_ST[:, None], strict=True)
    given = {"question": str(_plain(arrays.get("question", ""))), "answers": _strings(arrays.get("gold_answer", []))}
    trace = trace_of_weights(
        [(Step(i, *row, unknown_BT), layers) for i, (row, layers) in enumerate(zip(rows, weights, strict=True))],
        names,
        ModelFacts(model or path.stem),
        Prompt("", tokens_ST[0, :prompt].tolist(), [], **given),  # type: ignore[arg-type]
        shifted=False,
        **more,
        family="imported",
        kind=kind,
        attention="bidirectional" if kind == "mdm" else "causal",
        cached=0,
        sample_id=path.stem,
        output="",
        source=path.name,
    )
    check_attributes(trace.data.attrs, T)
    check_dimensions(trace.data)
    return trace


def _layers(names: Any, pattern: str) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(pattern, str(name))))


def _from_steps(steps: Any) -> Contents:
    steps = sorted(steps, key=lambda step: int(step["step"]))
    layers = _layers(steps[0], r"layer_(\d+)_attention_avg")
    if not layers:
        raise KeyError("layer_N_attention_avg")
    matrices = [[step[f"layer_{n}_attention_avg"] for n in layers] for step in steps]
    if len({id(one) for row in matrices for one in row}) < len(steps) * len(layers):
        raise ValueError("its steps share a matrix")  # a small file could repeat a large one
    tokens_ST = torch.from_numpy(np.stack([_flat(step["sequence"]) for step in steps]).astype(np.int64))
    weights = [
        {n: _floats(one, 2, tokens_ST.shape[1])[None] for n, one in zip(layers, row, strict=True)} for row in matrices
    ]
    coords = {"step": [int(step["step"]) for step in steps], "head": [-1]}
    return tokens_ST, weights, ("received", "attention_mean"), {"coords": coords}


def _from_matrices(arrays: Arrays, path: str | Path) -> Contents:
    layers = _layers(arrays, r"layer_(\d+)_full_attention")
    if not layers:
        raise FloatLensError(f"{path} has neither step_attention_data nor layer_N_full_attention: {sorted(arrays)[:6]}")
    by_head = all(f"layer_{n}_full_attention_heads" in arrays for n in layers)
    name = "layer_{}_full_attention_heads" if by_head else "layer_{}_full_attention"
    length = np.shape(arrays[name.format(layers[0])])[-1]
    weights = {n: _floats(arrays[name.format(n)], 3 if by_head else 2, length) for n in layers}
    tokens_ST = torch.full((1, length), -1)
    if not by_head:
        weights = {n: one[None] for n, one in weights.items()}
        return tokens_ST, [weights], ("received", "attention"), {"coords": {"head": [-1]}}
    if all(f"layer_{n}_{part}_states" in arrays for n in layers for part in ("query", "key")):
        vectors = {n: tuple(_heads(arrays[f"layer_{n}_{part}_states"]) for part in ("query", "key")) for n in layers}
        if all(q_HTD.shape[:2] == weights[n].shape[:2] for n, (q_HTD, _) in vectors.items()):
            if any(q.shape[0] % k.shape[0] or q.shape[1:] != k.shape[1:] for q, k in vectors.values()):
                raise ValueError("its queries and keys do not belong together")
            return tokens_ST, [weights], ("received", "attention", "qk", "qk_norm", "qk_cos"), {"vectors": vectors}
    return tokens_ST, [weights], ("received", "attention"), {}


def _floats(value: Any, dims: int, length: int | None = None) -> torch.Tensor:
    """An array of the paper's files as float32, checked; attention (..., length, length)."""
    if not isinstance(value, np.ndarray) or value.ndim != dims:
        raise ValueError(f"expected an array of {dims} dims, found the shape {np.shape(value)}")
    if length is not None and value.shape[-2:] != (length, length):
        raise ValueError(f"expected attention of {length} positions, found the shape {value.shape}")
    values = value.astype(np.float32)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"an array of shape {values.shape} holds no numbers, or some that are not finite")
    return torch.from_numpy(values)


def _heads(states: Any) -> torch.Tensor:
    """Queries or keys (H, T, D)."""
    return _floats(states[0] if np.ndim(states) == 4 else states, 3)


def _flat(value: Any) -> Array:
    """A sequence of token ids: an array, or a list of plain numbers."""
    if not isinstance(value, np.ndarray) and not all(type(one) is int for one in value):
        raise ValueError("expected token ids")
    return np.asarray(value).reshape(-1)


def _plain(value: Any) -> Any:
    """A single number or text; what is nested is refused, since it may refer to itself many times."""
    single = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if not isinstance(single, str | int | float):
        raise ValueError(f"expected a number or a text, found {type(single).__name__}")
    return single


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(_plain(one)) for one in (value.ravel().tolist() if isinstance(value, np.ndarray) else value)]


def _require(fine: bool, problem: str) -> None:
    if not fine:
        raise FloatLensError(f"the file holds {problem}; only arrays of numbers and text are read")


class _DType:
    """Stand-in for numpy.dtype: a plain kind and a size; a byte order may follow as state."""

    def __init__(self, code: Any, *_: Any) -> None:
        _require(isinstance(code, str) and bool(PLAIN.fullmatch(code)), f"an array of type {str(code)[:40]!r}")
        self.code, self.order = code.lstrip("<>|="), "="

    def __setstate__(self, state: Any) -> None:
        plain = isinstance(state, tuple) and len(state) >= 5 and all(part is None for part in state[2:5])
        _require(plain, "an array with fields")
        _require(state[1] in ("<", ">", "|", "="), f"an array of byte order {str(state[1])[:10]!r}")
        self.order = state[1] if state[1] != "|" else "="

    def resolve(self) -> np.dtype[Any]:
        return np.dtype("O") if self.code.startswith("O") else np.dtype(self.order + self.code)


class _NDArray:
    """Stand-in for numpy.ndarray until its state has been checked."""

    def __init__(self, *_: Any) -> None:
        self.value: Any = None

    def __setstate__(self, state: Any) -> None:
        _require(isinstance(state, tuple) and len(state) == 5, "an array whose state is not in NumPy's format")
        _, shape, dtype, fortran, data = state
        plain = isinstance(shape, tuple) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**40 for n in shape)
        _require(plain, f"an array of shape {str(shape)[:60]}")
        _require(isinstance(dtype, _DType), "an array without a type")
        if dtype.resolve().hasobject:
            fits = isinstance(data, list) and len(data) == math.prod(shape)
            _require(fits, f"an array of shape {shape} with another number of objects")
            self.value = (shape, data)
        else:
            self.value = make_array(data, shape, dtype.resolve(), bool(fortran))


def make_array(data: Any, shape: tuple[int, ...], kind: np.dtype[Any], fortran: bool) -> np.ndarray[Any, Any]:
    """The array of these bytes. An empty one may not be wide: (0, 10**9) would be taken for a long sequence."""
    count = math.prod(shape)
    fits = isinstance(data, bytes) and len(data) == count * kind.itemsize and not kind.hasobject
    _require(fits, f"an array of shape {shape} whose number of bytes does not match")
    _require(math.prod(max(1, n) for n in shape) <= max(MAX_EMPTY, len(data)), f"an empty array of shape {shape}")
    flat = np.frombuffer(data, kind) if kind.itemsize else np.zeros(count, kind)
    return flat.reshape(shape, order="F" if fortran else "C")


def _scalar(dtype: Any, data: Any = b"") -> Any:
    _require(isinstance(dtype, _DType) and bool(data), "a number without a type")
    return make_array(data, (), dtype.resolve(), False)[()]


STAND_INS: dict[tuple[str, str], Any] = {
    **{(f"{package}.multiarray", "_reconstruct"): _NDArray for package in ("numpy.core", "numpy._core")},
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
            raise FloatLensError(f"the file asks to call {module}.{name}, which is not a NumPy constructor")
        return STAND_INS[module, name]


def unpickle(stream: io.BytesIO) -> Any:
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
