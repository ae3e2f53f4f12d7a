"""The runs inside a folder: a study has one per model, each with one of interventions; any other run is alone."""

from __future__ import annotations

from pathlib import Path

from floatlens.runs.folder import MANIFEST, RunFolder, safe_name

MODELS = "models"
CAUSES = "causes"  # inside a model's run, with interventions


def model_runs(path: str | Path) -> list[RunFolder]:
    """The runs that contain traces and answers: those of a study's models in the study's order, or the run itself."""
    run = RunFolder.open(path)
    if run.remote or not (run.path / MODELS).is_dir():
        return [run]
    asked = run.manifest.get("asked")
    models = asked.get("models") if isinstance(asked, dict) else None
    names = [model for model in models if isinstance(model, str)] if isinstance(models, list) else []
    inside = [run.path / MODELS / safe_name(model) for model in names]
    return [RunFolder.open(folder) for folder in inside if (folder / MANIFEST).is_file()] or [run]


def all_runs(run: RunFolder) -> list[RunFolder]:
    """A run and all runs inside it: together they have all results."""
    if run.remote:
        return [run]
    found = [run]
    for model in sorted((run.path / MODELS).glob("*")):
        for folder in (model, model / CAUSES):
            if (folder / MANIFEST).is_file():
                found.append(RunFolder.open(folder))
    return found
