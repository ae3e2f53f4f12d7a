"""The golden data of block-causal models and of Mamba as the tests use it: whatever the folder holds."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("FLOATLENS_GOLDEN_BLOCKS") or Path(__file__).parent / "golden-blocks")


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def names(folder: str, prefix: str = "") -> list[str]:
    """The models whose names start with `prefix` and for which a folder holds data."""
    return sorted(path.stem for path in (FOLDER / folder).iterdir() if path.stem.startswith(prefix))


@lru_cache(maxsize=8)
def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / name, allow_pickle=False) as file:
        return dict(file)


@lru_cache
def prompts(family: str) -> dict[str, Any]:
    """Prompts and special ids of a family: sdar, llada2 or a2d_qwen3."""
    return read("prompts.json")[family]


@lru_cache(maxsize=4)
def lens(name: str, **options: Any) -> Any:
    """The golden model `name`, in float32."""
    import floatlens

    return floatlens.load(str(FOLDER / "models" / name), dtype="float32", **options)
