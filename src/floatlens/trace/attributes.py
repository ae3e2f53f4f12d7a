"""The attributes of a trace: which there are, and what each may hold. Checked once, when a stored trace is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from floatlens.errors import FloatLensError
from floatlens.untrusted import MAX_METADATA, matches, read_json

# Characters that tables and files cannot hold, and in a model's name those that a terminal or a figure cannot show.
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_POSITIONS = 1 << 40  # where their number is not known
MAX_NUMBER = 1 << 20  # of layers, heads and steps: loops run up to them

TEXT: tuple[str, ...] = (
    "model", "revision", "family", "adapter", "sampler", "implementation", "final_tokens_from", "floatlens", "sample_id",
    "prompt", "question", "output", "text", "source",
)  # fmt: skip
NUMBER_OR_TEXT = (str, int, float, bool, None)
# What each attribute holds, in the words of `matches`.
PLAIN: dict[str, Any] = {
    **dict.fromkeys(TEXT, str),
    "kind": ("mdm", "arm"),
    "attention": ("bidirectional", "causal", "block", "two-way"),
    "detail": ("full", "summary"),
    **dict.fromkeys(("cached", "infill"), range(2)),
    **dict.fromkeys(("n_layers", "n_heads"), range(MAX_NUMBER + 1)),
    "prompt_length": int,
    "seed": int,
}
STRUCTURED: dict[str, Any] = {  # as JSON, since Zarr and xarray keep plain values
    **{name: [str] for name in ("answers", "gold", "rules", "interventions", "region_names", "rule_names")},
    "versions": {str: object},
    "loaded_with": {str: object},
    "special_ids": [int],
    "vocabulary": {str: str},
    "settings": {str: (*NUMBER_OR_TEXT, [NUMBER_OR_TEXT])},
    "built_from": (None, {str: object}),
    "replay": (None, {"order": object, "text": object}),
    "regions": [{"name": str, "start": int, "end": int}],
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


def check_attributes(attributes: Mapping[str, Any], positions: int) -> None:
    """Raise ValueError for an attribute whose value FloatLens does not write; `positions` is the length of the sequence."""
    for name in attributes.keys() & (PLAIN | STRUCTURED).keys():
        value = attributes[name]
        try:
            parsed = json.loads(value) if name in STRUCTURED else value
            fine = matches(parsed, (PLAIN | STRUCTURED)[name])
            if fine and name == "prompt_length":
                fine = 0 <= parsed <= positions
            if fine and name == "regions":
                fine = all(0 <= one["start"] <= one["end"] <= positions for one in parsed)
        except (TypeError, ValueError, RecursionError):
            fine = False
        if not fine:
            raise ValueError(f"its attribute {name!r} is {str(value)[:60]!r}; expected what FloatLens writes there")


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
