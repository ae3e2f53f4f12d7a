"""Import traces from the paper's own .npz files, which hold pickled object arrays.

The pickles are read by `safe_pickle`, which runs none of their code.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from floatlens.attention.prompt_batch import PromptBatch
from floatlens.data.prompt import Prompt
from floatlens.errors import FloatLensError
from floatlens.trace import safe_pickle
from floatlens.trace.attributes import check_attributes, check_dimensions
from floatlens.trace.labels import ModelFacts, make_trace
from floatlens.trace.trace import Trace
from floatlens.untrusted import room

LARGEST = 8 << 30  # largest size in bytes of the unpacked members of a file
Array = np.ndarray[Any, Any]
Arrays = dict[str, Any]
UNREADABLE = (
    ValueError, EOFError, LookupError, TypeError, AttributeError, ImportError, ArithmeticError, RecursionError, MemoryError,
    AssertionError, NotImplementedError, pickle.UnpicklingError, struct.error,
)  # fmt: skip


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
                raise FloatLensError(
                    f"{path} unpacks to {total:,} bytes; at most {most:,} are read from a file of its size"
                )
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
            value = safe_pickle.load(stream)
            return value.item() if isinstance(value, np.ndarray) and value.shape == () else value
        return safe_pickle.make_array(raw[stream.tell() :], shape, dtype, fortran)
    except UNREADABLE as error:
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
    except UNREADABLE as error:
        raise FloatLensError(
            f"{path} does not have the layout of the paper's files: {type(error).__name__} {error}"
        ) from None


def _to_trace(arrays: Arrays, path: Path, model: str, kind: str) -> Trace:
    steps = arrays.get("step_attention_data")
    data = _from_steps(steps, arrays) if steps is not None and len(steps) else _from_matrices(arrays, path)
    prompt = int(_plain(arrays.get("input_length", 0)))
    if not 0 <= prompt <= data.sizes["position"]:
        raise ValueError(f"input_length is {prompt}, but there are {data.sizes['position']} positions")
    ids = data["tokens"].values[0, :prompt].tolist()
    given = Prompt(
        "", ids, [], str(_plain(arrays.get("question", ""))), answers=_strings(arrays.get("gold_answer", []))
    )
    trace = make_trace(
        data,
        ModelFacts(model or path.stem),
        PromptBatch([given], torch.tensor([ids]).long(), None, [0]),
        family="imported",
        kind=kind,
        attention="bidirectional" if kind == "mdm" else "causal",
        cached=0,
        sample_id=path.stem,
        output="",
        source=path.name,
    )
    check_attributes(trace.data.attrs, data.sizes["position"])
    check_dimensions(data)
    return trace


def _layers(names: Any, pattern: str) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(pattern, str(name))))


def _from_steps(steps: Any, arrays: Arrays) -> xr.Dataset:
    steps = sorted(steps, key=lambda step: int(step["step"]))
    layers = _layers(steps[0], r"layer_(\d+)_attention_avg")
    if not layers:
        raise KeyError("layer_N_attention_avg")
    matrices = [[step[f"layer_{n}_attention_avg"] for n in layers] for step in steps]
    if len({id(one) for row in matrices for one in row}) < len(steps) * len(layers):
        raise ValueError("its steps share a matrix")  # a small file could repeat a large one
    tokens = np.stack([_flat(step["sequence"]) for step in steps]).astype(np.int64)
    mean = np.stack([np.stack([_floats(one, 2, tokens.shape[1]) for one in row]) for row in matrices])
    prompt = int(_plain(arrays.get("input_length", 0)))
    changed = tokens[1:] != tokens[:-1]
    last = np.where(changed.any(0), len(changed) - 1 - changed[::-1].argmax(0), -1)
    committed = np.where(np.arange(tokens.shape[1]) >= prompt, np.where(last >= 0, last, len(steps) - 1), -1)
    return _dataset([int(s["step"]) for s in steps], layers, [-1], tokens, committed, mean.mean(2)[:, :, None]).assign(
        attention_mean=(("step", "layer", "query", "key"), mean)
    )


def _from_matrices(arrays: Arrays, path: str | Path) -> xr.Dataset:
    layers = _layers(arrays, r"layer_(\d+)_full_attention")
    if not layers:
        raise FloatLensError(
            f"{path} has neither step_attention_data nor layer_N_full_attention; it holds {sorted(arrays)[:6]}"
        )
    by_head = all(f"layer_{n}_full_attention_heads" in arrays for n in layers)
    name = "layer_{}_full_attention_heads" if by_head else "layer_{}_full_attention"
    length = np.shape(arrays[name.format(layers[0])])[-1]
    full = np.stack([_floats(arrays[name.format(n)], 3 if by_head else 2, length) for n in layers])
    full = full if by_head else full[:, None]
    prompt = int(_plain(arrays.get("input_length", 0)))
    committed = np.where(np.arange(length) >= prompt, 0, -1)
    heads = list(range(full.shape[1])) if by_head else [-1]
    data = _dataset([0], layers, heads, np.full((1, length), -1, np.int64), committed, full.mean(2)[None])
    data = data.assign(attention=(("step", "layer", "head", "query", "key"), full[None]))
    if by_head and all(f"layer_{n}_{part}_states" in arrays for n in layers for part in ("query", "key")):
        q = np.stack([_heads(arrays[f"layer_{n}_query_states"]) for n in layers])
        k = np.stack([_heads(arrays[f"layer_{n}_key_states"]) for n in layers])
        if q.shape[1] == len(heads):
            data = data.assign(_factors(q, k))
    return data


def _factors(q_LHTD: Array, k_LKTD: Array) -> dict[str, Any]:
    (L, H, T, D), K = q_LHTD.shape, k_LKTD.shape[1]
    q_norm, k_norm = np.linalg.norm(q_LHTD, axis=-1), np.linalg.norm(k_LKTD, axis=-1)
    unit_q = q_LHTD / np.maximum(q_norm, 1e-30)[..., None]
    unit_k = k_LKTD / np.maximum(k_norm, 1e-30)[..., None]
    grouped = (L, K, H // K, D)  # query head h uses key head h // (H / K)
    found = {
        "qk": np.einsum("lkgd,lktd->lkgt", q_LHTD.mean(2).reshape(grouped), k_LKTD),
        "qk_norm": q_norm.mean(-1).reshape(L, K, H // K, 1) * k_norm[:, :, None],
        "qk_cos": np.einsum("lkgd,lktd->lkgt", unit_q.mean(2).reshape(grouped), unit_k),
    }
    dims = ("step", "layer", "head", "position")
    return {name: (dims, value.reshape(1, L, H, T)) for name, value in found.items()}


def _dataset(
    steps: list[int],
    layers: list[int],
    heads: list[int],
    tokens: Array,
    committed: Array,
    received: Array,
) -> xr.Dataset:
    return xr.Dataset(
        {
            "tokens": (("step", "position"), tokens),
            "committed_at": (("position",), committed),
            "confidence": (("step", "position"), np.full(tokens.shape, np.nan, np.float32)),
            "received": (("step", "layer", "head", "position"), received.astype(np.float32)),
        },
        coords={"step": steps, "layer": layers, "head": heads, "position": np.arange(tokens.shape[1])},
    )


def _floats(value: Any, dims: int, length: int) -> Array:
    """Attention as float32 (..., length, length)."""
    if not isinstance(value, np.ndarray) or value.ndim != dims or value.shape[-2:] != (length, length):
        raise ValueError(f"expected attention of {length} positions, found the shape {np.shape(value)}")
    return value.astype(np.float32)


def _heads(states: Any) -> Array:
    if not isinstance(states, np.ndarray):
        raise ValueError("expected arrays of queries and keys")
    array = states.astype(np.float32)
    return array[0] if array.ndim == 4 else array


def _flat(value: Any) -> Array:
    """A sequence of token ids: an array, or a list of plain numbers."""
    if not isinstance(value, np.ndarray) and not all(type(one) is int for one in value):
        raise ValueError("expected token ids")
    return np.asarray(value).reshape(-1)


def _plain(value: Any) -> Any:
    """A single number or text; what is nested is refused, since it may refer to itself many times."""
    found = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    if not isinstance(found, str | int | float):
        raise ValueError(f"expected a number or a text, found {type(found).__name__}")
    return found


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(_plain(one)) for one in (value.ravel().tolist() if isinstance(value, np.ndarray) else value)]
