"""The golden data of block-causal models and of Mamba as the tests use it: whatever the folders hold.

SDAR-MoE has the layout of golden-blocks in the folder golden-modes, which `tests.golden_modes` reads for Nemotron.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden_data import read_json

BLOCKS = Path(os.environ.get("FLOATLENS_GOLDEN_BLOCKS") or Path(__file__).parent / "golden-blocks")
MODES = Path(os.environ.get("FLOATLENS_GOLDEN_MODES") or Path(__file__).parent / "golden-modes")


def path(name: str) -> Path:
    """Where a file or a model's folder is, in the first folder that has it."""
    return next((folder / name for folder in (BLOCKS, MODES) if (folder / name).exists()), BLOCKS / name)


def read(name: str) -> Any:
    return read_json(next(folder for folder in (BLOCKS, MODES) if any(folder.glob(f"{name}*"))) / name)


def names(folder: str, prefix: str = "") -> list[str]:
    """The models whose names start with `prefix` and for which a folder holds data."""
    found = (one.name for root in (BLOCKS, MODES) for one in (root / folder).glob(f"{prefix}*"))
    return sorted(name.partition(".")[0] for name in found)


@lru_cache(maxsize=8)
def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(path(name), allow_pickle=False) as file:
        return dict(file)


# Which family of prompts and special ids a model's name belongs to, and how it is loaded.
KINDS: dict[str, dict[str, Any]] = {
    "sdar_moe": {},
    "sdar": {},
    "llada2": {},
    "a2d_qwen3": {"family": "a2d-block"},
}


def kind(name: str) -> str | None:
    """The family of prompts of a model, by its name; None for one that is no block-causal model."""
    return next((kind for kind in KINDS if name.startswith(kind)), None)


def block_models(folder: str) -> list[str]:
    """The block-causal models for which a folder holds data."""
    return [name for name in names(folder) if kind(name)]


def special(name: str) -> dict[str, Any]:
    """Prompts and special ids of a model."""
    found = kind(name)
    assert found is not None
    return json.loads((MODES if found == "sdar_moe" else BLOCKS).joinpath("prompts.json").read_text())[found]


def forward(name: str) -> dict[str, np.ndarray]:
    return arrays(f"forward/{name}.npz")


def cases(name: str) -> list[int]:
    """The numbers of the forward passes of a model."""
    return sorted(
        int(key[4:].split("_")[0]) for key in forward(name) if key.endswith("_input_ids") and key[:4] == "case"
    )


def case(name: str, number: int) -> dict[str, np.ndarray]:
    start = f"case{number}_"
    return {key.removeprefix(start): value for key, value in forward(name).items() if key.startswith(start)}


@lru_cache(maxsize=4)
def lens(name: str) -> Any:
    """The golden model `name`, in float32; results of LLaDA2.1 were made by the model of LLaDA2.0."""
    import floatlens

    found, options = kind(name), {}
    if found is not None:
        options = dict(KINDS[found])
    if name.startswith("llada21"):
        name, options = name.replace("llada21", "llada2"), {**options, "family": "llada2.1"}
    model = next(model for model in reversed(names("models")) if name.startswith(model))
    return floatlens.load(str(path(f"models/{model}")), dtype="float32", **options)


def lens_with_ids(name: str, ends: tuple[int, ...] = ()) -> Any:
    """The golden model, with the special ids of the folder instead of a tokenizer's, and these end tokens."""
    found = lens(name)
    found.__dict__["mask_id"] = special(name)["mask_token_id"]
    found.__dict__["end_ids"] = ends
    found.__dict__.pop("special_ids", None)
    return found
