"""Import traces from the paper's own .npz files, which hold pickled object arrays.

The pickles are read by `safe_pickle`, which runs none of their code.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.trace import safe_pickle
from floatlens.trace.trace import Trace
from floatlens.version import __version__

LARGEST = 8 << 30  # largest size in bytes of the unpacked members of a file
SMALL, RATIO = 64 << 20, 500  # above SMALL bytes, at most RATIO per byte of the file; zeros could reach 1000
Arrays = dict[str, Any]
UNREADABLE = (
    ValueError, EOFError, LookupError, TypeError, AttributeError, ImportError, OverflowError, RecursionError, MemoryError,
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
            most = min(LARGEST, max(SMALL, RATIO * path.stat().st_size))
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
        wanted = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if wanted != len(raw) - stream.tell():
            raise ValueError(f"shape {shape} does not match its size")
        array = np.frombuffer(raw, dtype, offset=stream.tell())
        return array.reshape(shape, order="F" if fortran else "C")
    except UNREADABLE as error:
        raise FloatLensError(f"{path}: its member {member} is not a readable array: {error}") from None


def import_npz(path: str | Path, *, model: str = "", kind: str = "mdm") -> Trace:
    """Make a Trace from the file `path`, written by the paper's scripts.

    Step data gives head-averaged attention per step (head -1); without it, the full matrices give a single step, per head
    if the file has heads. Queries and keys give the QK factors, where query head h uses key head h // (H / H_kv). `model`
    is the name of the model to store in the trace, `kind` its kind ("mdm" or "arm").
    """
    arrays = read_npz(path)
    steps = arrays.get("step_attention_data")
    try:
        data = _from_steps(steps, arrays) if steps is not None and len(steps) else _from_matrices(arrays, path)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise FloatLensError(
            f"{path} does not have the layout of the paper's files: {type(error).__name__} {error}"
        ) from None
    prompt = int(_plain(arrays.get("input_length", 0)))
    length = data.sizes["position"]
    data.attrs = {
        "model": model or Path(path).stem,
        "family": "imported",
        "kind": kind,
        "attention": "bidirectional" if kind == "mdm" else "causal",
        "cached": 0,
        "sampler": "",
        "settings": json.dumps({}),
        "sample_id": Path(path).stem,
        "question": str(_plain(arrays.get("question", ""))),
        "answers": json.dumps(_strings(arrays.get("gold_answer", []))),
        "output": "",
        "prompt_length": prompt,
        "regions": json.dumps([{"name": "answer", "start": prompt, "end": length}] if 0 < prompt < length else []),
        "gold": json.dumps([]),
        "vocabulary": json.dumps({}),
        "floatlens": __version__,
        "rules": json.dumps([]),
        "source": Path(path).name,
    }
    return Trace(data)


def _layers(names: Any, pattern: str) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(pattern, str(name))))


def _from_steps(steps: Any, arrays: Arrays) -> xr.Dataset:
    steps = sorted(steps, key=lambda step: int(step["step"]))
    layers = _layers(steps[0], r"layer_(\d+)_attention_avg")
    if not layers:
        raise KeyError("layer_N_attention_avg")
    mean = np.stack([np.stack([np.asarray(s[f"layer_{n}_attention_avg"], np.float32) for n in layers]) for s in steps])
    tokens = np.stack([np.asarray(s["sequence"]).reshape(-1) for s in steps]).astype(np.int64)
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
    full = np.stack([np.asarray(arrays[name.format(n)], np.float32) for n in layers])
    full = full if by_head else full[:, None]
    length = full.shape[-1]
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


def _factors(q_LHTD: np.ndarray[Any, Any], k_LKTD: np.ndarray[Any, Any]) -> dict[str, Any]:
    k = np.repeat(k_LKTD, q_LHTD.shape[1] // k_LKTD.shape[1], axis=1)
    q_norm, k_norm = np.linalg.norm(q_LHTD, axis=-1), np.linalg.norm(k, axis=-1)
    unit_q = q_LHTD / np.maximum(q_norm, 1e-30)[..., None]
    unit_k = k / np.maximum(k_norm, 1e-30)[..., None]
    dims = ("step", "layer", "head", "position")
    return {
        "qk": (dims, np.einsum("lhd,lhtd->lht", q_LHTD.mean(2), k)[None]),
        "qk_norm": (dims, (q_norm.mean(-1)[..., None] * k_norm)[None]),
        "qk_cos": (dims, np.einsum("lhd,lhtd->lht", unit_q.mean(2), unit_k)[None]),
    }


def _dataset(
    steps: list[int],
    layers: list[int],
    heads: list[int],
    tokens: np.ndarray[Any, Any],
    committed: np.ndarray[Any, Any],
    received: np.ndarray[Any, Any],
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


def _heads(states: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(states, np.float32)
    return array[0] if array.ndim == 4 else array


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _strings(value: Any) -> list[str]:
    value = _plain(value)
    return [str(value)] if isinstance(value, str) else [str(each) for each in np.asarray(value).ravel().tolist()]
