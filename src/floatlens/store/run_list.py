"""The runs inside a folder: a study has one per model, each with a run of interventions and one of replays."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

from floatlens.errors import FloatLensError
from floatlens.store.folder import MANIFEST, RunFolder, safe_name
from floatlens.store.storage import Storage

MODELS = "models"
CAUSES = "causes"  # inside a model's run, with interventions
REPLAYS = "replays"  # inside a model's run, traces of given texts


def model_runs(path: str | Path) -> list[RunFolder]:
    """The runs that contain traces and answers: those of a study's models in the study's order, or the run itself."""
    run = RunFolder.open(path)
    asked = run.manifest.get("asked")
    models = asked.get("models") if isinstance(asked, dict) else None
    names = [model for model in models if isinstance(model, str)] if isinstance(models, list) else []
    return _existing(run, ((MODELS, safe_name(model)) for model in names)) or [run]


def all_runs(run: RunFolder) -> list[RunFolder]:
    """A run and all runs inside it: together they have all results."""
    if run.remote:
        models = sorted({name.split("/")[1] for name in run.storage.names(MODELS)})
    else:
        models = sorted(path.name for path in (run.path / MODELS).glob("*"))
    inside = ((MODELS, model, *more) for model in models for more in ((), (CAUSES,), (REPLAYS,)))
    return [run, *_existing(run, inside)]


def _existing(run: RunFolder, places: Iterable[tuple[str, ...]]) -> list[RunFolder]:
    """Open the runs that exist; one behind a link that leads out of `run` is left out with a warning."""
    found = []
    for place in places:
        try:
            location = run.inside(*place)
        except FloatLensError as error:
            warnings.warn(f"left out: {error}", stacklevel=1)
            continue
        if Storage(location).exists(MANIFEST):
            found.append(RunFolder.open(location))
    return found
