"""The runs in a folder: a study holds one a model, any other command's folder is its own."""

from __future__ import annotations

from pathlib import Path

from floatlens.runs.folder import MANIFEST, RunFolder, safe_name

MODELS = "models"


def members(path: str | Path) -> list[RunFolder]:
    """The run folders that hold traces and answers: those of a study's models as they were named, or the run itself."""
    run = RunFolder.open(path)
    models = run.manifest.get("asked", {}).get("models", ()) if (Path(path) / MODELS).is_dir() else ()
    inside = [Path(path) / MODELS / safe_name(model) for model in models]
    return [RunFolder.open(place) for place in inside if (place / MANIFEST).is_file()] or [run]
