"""The runs in a folder: a study holds one a model, with one of interventions in it; any other command's is its own."""

from __future__ import annotations

from pathlib import Path

from floatlens.runs.folder import MANIFEST, RunFolder, safe_name
from floatlens.runs.storage import Remote

MODELS = "models"
CAUSES = "causes"  # in a model's run, with interventions


def members(path: str | Path) -> list[RunFolder]:
    """The run folders that hold traces and answers: those of a study's models as they were named, or the run itself."""
    run = RunFolder.open(path)
    models = run.manifest.get("asked", {}).get("models", ()) if (Path(path) / MODELS).is_dir() else ()
    inside = [Path(path) / MODELS / safe_name(model) for model in models]
    return [RunFolder.open(place) for place in inside if (place / MANIFEST).is_file()] or [run]


def every(run: RunFolder) -> list[RunFolder]:
    """A run and all runs that lie in it: together they have all results."""
    if isinstance(run.storage, Remote):
        return [run]
    found = [run]
    for place in sorted((run.path / MODELS).glob("*")):
        for folder in (place, place / CAUSES):
            if (folder / MANIFEST).is_file():
                found.append(RunFolder.open(folder))
    return found
