"""The runs inside a folder, and their traces.

A study has one run per model, each with a run of interventions and one of replays. Traces are opened one by one, so that a
large run is never in memory as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.folder import MANIFEST, RunFolder, safe_name
from floatlens.store.manifest import describe
from floatlens.store.storage import Storage
from floatlens.trace.summarise import Detail
from floatlens.trace.trace import Trace

MODELS = "models"
CAUSES = "causes"  # inside a model's run, with interventions
REPLAYS = "replays"  # inside a model's run, traces of given texts
TEXTS = "texts"  # inside a model's run, prose that was read under several conditions
SWITCH = "switch"  # inside a model's run, two traces of one text: without the token that becomes the sink, and with it


def save_run(
    path: str | Path, traces: Trace | Iterable[Trace], *, dtype: str = "float16", detail: Detail = "full"
) -> Path:
    """Save traces as a run folder, which `floatlens figure`, `report` and `explore` take like any run.

    A trace without a `sample_id` is numbered. `dtype` and `detail` are those of `Trace.save`.
    """
    given = [traces] if isinstance(traces, Trace) else list(traces)
    if not given:
        raise FloatLensError("there are no traces to save; pass at least one")
    named = [(trace.model, str(trace.data.attrs.get("sample_id") or f"trace-{n}")) for n, trace in enumerate(given)]
    if twice := next((key for key in named if named.count(key) > 1), None):
        raise FloatLensError(f"two traces of {twice[0]} have the sample_id {twice[1]!r}; give each its own")
    with RunFolder.create(path, describe("save_run", {"traces": len(given)})) as run:
        for key, trace in zip(named, given, strict=True):
            saved = Trace(trace.data.assign_attrs(sample_id=key[1]))
            run.put(key, {"model": key[0], "id": key[1]}, run.save_trace(" ".join(key), saved, dtype, detail))
        run.finish()
    return Path(path)


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
    inside = ((MODELS, model, *more) for model in models for more in ((), (CAUSES,), (REPLAYS,), (TEXTS,), (SWITCH,)))
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


class RunTraces(Sequence[Trace]):
    """A sequence of traces on disk.

    Parameters
    ----------
    limit: maximum number of traces per run folder.
    keep: called with the name of a sample; returns whether its trace is used. By default, all are.
    watch: called with the number of traces; returns a function that is called once per trace while iterating.
    """

    def __init__(
        self,
        folders: Sequence[RunFolder],
        limit: int | None = None,
        watch: Callable[[int], Callable[[], None]] | None = None,
        keep: Callable[[str], bool] = lambda name: True,
    ) -> None:
        every = [[path for name, path in folder.samples() if keep(name)][:limit] for folder in folders]
        self.paths = [path for paths in every for path in paths]
        if not self.paths:
            names = ", ".join(str(folder) for folder in folders)
            raise FloatLensError(f"{names} has no traces; create some with `floatlens trace`")
        self.folders = folders
        self.advance = watch(len(self)) if watch else lambda: None

    def replays(self) -> Iterator[Trace]:
        """The traces of replayed texts of a study, in addition to those of its models' own answers."""
        for folder in self.folders:
            inside = folder.path / REPLAYS
            if (inside / MANIFEST).exists():
                yield from (Trace.open(path) for _, path in RunFolder.open(inside).samples())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return [*map(Trace.open, self.paths[index])] if isinstance(index, slice) else Trace.open(self.paths[index])

    def __iter__(self) -> Iterator[Trace]:
        for path in self.paths:
            yield Trace.open(path)
            self.advance()
