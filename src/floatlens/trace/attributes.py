"""The attributes of a trace: which there are, and what each may hold. Checked once, when a stored trace is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.untrusted import MAX_METADATA, read_json

WORDS = {
    "kind": ("mdm", "arm"),
    "attention": ("bidirectional", "causal", "block", "two-way"),
    "detail": ("full", "summary"),
}
TEXT = (
    "model", "revision", "family", "adapter", "sampler", "implementation", "evidence_over", "final_tokens_from",
    "floatlens", "sample_id", "prompt", "question", "output", "text", "source",
)  # fmt: skip
# Characters that tables and files cannot hold, and in a model's name those that a terminal or a figure cannot show.
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_POSITIONS = 1 << 40  # where their number is not known
MAX_NUMBER = 1 << 20  # of layers, heads and steps: loops run up to them
WHOLE = {"cached": 1, "infill": 1, "n_layers": MAX_NUMBER, "n_heads": MAX_NUMBER}  # and the largest value of each


def _are(kind: type, values: Any) -> bool:
    return all(type(one) is kind for one in values)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)


# Attributes that are stored as JSON, with their check and what it expects.
STRUCTURED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("answers", "gold", "rules", "interventions", "region_names", "rule_names"),
        (lambda value: isinstance(value, list) and _are(str, value), "texts"),
    ),
    **dict.fromkeys(("versions", "loaded_with"), (lambda value: isinstance(value, dict), "an object")),
    "special_ids": (lambda value: isinstance(value, list) and _are(int, value), "token ids"),
    "vocabulary": (lambda value: isinstance(value, dict) and _are(str, value.values()), "an object of texts"),
    "settings": (
        lambda value: (
            isinstance(value, dict)
            and all(_is_plain(one) or (isinstance(one, list) and all(map(_is_plain, one))) for one in value.values())
        ),
        "an object of numbers and texts",
    ),
    "built_from": (lambda value: isinstance(value, dict | None), "an object or null"),
    "replay": (
        lambda value: value is None or (isinstance(value, dict) and {"order", "text"} <= value.keys()),
        "an object with order and text, or null",
    ),
}


def read_attributes(folder: Path, root: Path) -> dict[str, Any]:
    """The attributes of a stored trace inside `root`, checked, from its zarr.json alone."""
    file = folder / "zarr.json"
    attributes = read_json(file, root, MAX_METADATA).get("attributes", {})
    try:
        if not isinstance(attributes, dict):
            raise ValueError("its attributes are not an object")
        check_attributes(attributes, MAX_POSITIONS)
    except ValueError as error:
        raise FloatLensError(f"{file} does not describe a trace: {error}") from None
    return attributes | printable_texts(attributes)


def encode_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as they are stored: lists and objects as JSON, since Zarr and xarray keep plain values.

    >>> encode_attributes({"gold": ["doc1"], "seed": 0})
    {'gold': '["doc1"]', 'seed': 0}
    """
    structured = {*STRUCTURED, "regions"}
    return {n: json.dumps(v, ensure_ascii=False) if n in structured else v for n, v in attributes.items()}


def check_attributes(attributes: Mapping[str, Any], positions: int) -> None:
    """Raise ValueError for an attribute whose value FloatLens does not write; `positions` is the length of the sequence."""
    for name, value in attributes.items():
        if name in WORDS:
            _expect(name, value, value in WORDS[name], f"one of {', '.join(WORDS[name])}")
        elif name in TEXT:
            _expect(name, value, isinstance(value, str), "a text")
        elif name in WHOLE or name == "prompt_length":
            most = WHOLE.get(name, positions)
            _expect(name, value, type(value) is int and 0 <= value <= most, f"a whole number from 0 to {most}")
        elif name == "seed":
            _expect(name, value, type(value) is int, "a whole number")
        elif name in STRUCTURED:
            check, expected = STRUCTURED[name]
            _expect(name, value, check(_parse(name, value)), expected)
        elif name == "regions":
            _expect(name, value, _are_regions(_parse(name, value), positions), "spans of positions, each with a name")


def printable_texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The texts in the attributes, with "\ufffd" for characters that cannot be written or shown.

    >>> printable_texts({"model": "a\\x1b[2Jb", "seed": 0})
    {'model': 'a\ufffd[2Jb'}
    """
    patterns = {name: UNPRINTABLE if name == "model" else LONE_SURROGATE for name in TEXT}
    return {name: pattern.sub("\ufffd", attributes[name]) for name, pattern in patterns.items() if name in attributes}


def check_dimensions(data: xr.Dataset) -> None:
    """Raise ValueError for steps, layers, heads or tokens that are not counted as FloatLens counts them."""
    for dim in ("step", "position"):
        if not data.sizes[dim]:
            raise ValueError(f"it has no {dim}; a trace has at least one")
    for name, least in {"step": 0, "layer": 0, "head": -1, "position": 0, "committed_at": -1}.items():
        if name not in data.variables:
            continue
        values = data[name].values
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise ValueError(f"its {name!r} are not whole numbers")
        if len(values) and (values.min() < least or (name != "position" and values.max() > MAX_NUMBER)):
            raise ValueError(f"its {name!r} reach from {values.min()} to {values.max()}, which is not possible")
        if name in ("step", "layer", "position") and (np.diff(values.astype(np.int64)) <= 0).any():
            raise ValueError(f"its {name!r} are not in order")
    for name in ("tokens", "final_tokens"):
        if name in data and data[name].dtype.kind not in "iu":
            raise ValueError(f"its {name!r} are not whole numbers")


def _are_regions(value: Any, positions: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and all(type(one.get(end)) is int for end in ("start", "end"))
        and 0 <= one["start"] <= one["end"] <= positions
        for one in value
    )


def _parse(name: str, value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        _expect(name, value, False, "JSON")


def _expect(name: str, value: Any, fine: bool, expected: str) -> None:
    if not fine:
        raise ValueError(f"its attribute {name!r} is {str(value)[:60]!r}; expected {expected}")
