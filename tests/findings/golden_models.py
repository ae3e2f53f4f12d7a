"""Traces of the golden data's random models, whatever models the folder holds."""

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FLOATLENS_GOLDEN") or Path(__file__).parents[1] / "golden")


def names() -> list[str]:
    return sorted(path.name for path in (FOLDER / "models").iterdir() if path.is_dir())


def trace(name: str) -> Any:
    import floatlens

    prompt = json.loads((FOLDER / "prompts.json").read_text())["prompts"][-1]
    return floatlens.load(str(FOLDER / "models" / name), dtype="float32").trace(prompt, max_new_tokens=8, steps=4)
