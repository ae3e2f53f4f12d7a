"""Access to the golden data: the models, prompts and settings in its folder."""

from __future__ import annotations

import json
import lzma
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("FLOATLENS_GOLDEN") or Path(__file__).parent / "golden")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or of the compressed one in its place."""
    packed = path.with_name(f"{path.name}.xz")
    return json.loads(lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes())


def read(name: str) -> Any:
    return read_json(FOLDER / name)


def names(folder: str) -> list[str]:
    """The models for which a folder holds data."""
    return sorted(path.name.partition(".")[0] for path in (FOLDER / folder).iterdir())


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / name, allow_pickle=False) as file:
        return dict(file)


@lru_cache
def special() -> dict[str, Any]:
    return read("prompts.json")


@lru_cache(maxsize=4)
def lens(name: str) -> Any:
    """The golden model `name`, in float32."""
    import floatlens

    return floatlens.load(str(FOLDER / "models" / name), dtype="float32")
