"""The run folders that the server shows, addressed by number.

A page names a run and a sample by their index; no text of a request becomes part of a path. A sample that is a link to
somewhere outside its run is not listed, and one that contains a link is refused by `Trace.open`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.explorer.film import film
from floatlens.store.folder import MANIFEST, SAMPLES
from floatlens.store.runs import SWITCH
from floatlens.trace.attributes import read_attributes
from floatlens.trace.trace import Trace
from floatlens.untrusted import inside

LISTED = {"model": "model", "question": "question", "answer": "output"}  # names in the list, and in the trace
LONGEST = 300  # characters of a text in the list


class RunFolders:
    """Run folders, read-only. A sample keeps its number while the server runs, even when samples are added to its run."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [path.resolve() for path in paths]
        self.names = names([Path(path) for path in paths])
        self.known: list[dict[Path, dict[str, Any]]] = [{} for _ in paths]
        self.listing, self.reading = Lock(), Lock()
        self._made = lru_cache(maxsize=8)(_film)

    def contents(self) -> list[dict[str, Any]]:
        """List the runs with their samples, in the order of their numbers; of a damaged sample only the id is known."""
        found = []
        for run, name in enumerate(self.names):
            samples = [{"sample": index, **about} for index, about in enumerate(self._samples(run).values())]
            found.append({"run": run, "name": name, "samples": samples})
        return found

    def film(self, run: int, sample: int) -> dict[str, Any]:
        """Return the film of a sample; the most recent ones are cached. One is made at a time: each needs memory."""
        with self.reading:
            return self._made(self.path(run, sample))

    def path(self, run: int, sample: int) -> Path:
        """Return the folder of a sample's trace."""
        samples = [*self._samples(run)] if run < len(self.paths) else []
        if sample >= len(samples):
            raise FloatLensError(f"run {run} has no sample {sample}; /api/store lists what there is, counted from 0")
        inside(samples[sample], self.paths[run])  # it may have become a link since it was listed
        return samples[sample]

    def _samples(self, run: int) -> dict[Path, dict[str, Any]]:
        with self.listing:
            root, known = self.paths[run], self.known[run]
            for path in [root] if (root / "zarr.json").is_file() else sorted((root / SAMPLES).glob("[!.]*")):
                if path not in known and _is_inside(path / "zarr.json", root):
                    known[path] = _describe(path)
            return dict(known)


def _film(path: Path) -> dict[str, Any]:
    try:
        made = film(Trace.open(path))
        json.dumps(made, allow_nan=False)
    except FloatLensError:
        raise
    except Exception as error:  # a damaged file can fail in any way: codecs, JSON, shapes
        raise FloatLensError(f"sample {path.name} cannot be shown: {type(error).__name__}: {error}") from error
    return made


def runs_in(path: Path) -> list[Path]:
    """Return the run folders with traces in a folder: itself, or those one or two levels below it, as in a study.

    The films of a study come first: one text without and with the token that becomes the sink.

    A run folder is also returned without traces, so that a run that has just started can be opened; a saved trace counts
    as a run of one trace.
    """
    if (path / "zarr.json").is_file():
        return [path]
    found = [file for pattern in ("*", "*/*") for file in path.glob(f"{pattern}/{MANIFEST}") if _traces(file.parent)]
    if found and not _traces(path):
        switches = [file.parent for file in path.glob(f"*/*/{SWITCH}/{MANIFEST}") if _traces(file.parent)]
        return sorted(switches) + sorted(file.parent for file in found)
    return [path] if (path / MANIFEST).is_file() and (path / SAMPLES).is_dir() else []


def _traces(path: Path) -> bool:
    return any((path / SAMPLES).glob("*/zarr.json"))


def _is_inside(file: Path, root: Path) -> bool:
    """Whether a file exists inside `root`; a link may point anywhere, so it is resolved before it is read."""
    try:
        return inside(file, root).is_file()
    except (FloatLensError, OSError):
        return False


def names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that distinguish them.

    >>> names([Path("a/tiny-mdm"), Path("b/tiny-mdm"), Path("c")])
    ['a/tiny-mdm', 'b/tiny-mdm', 'c']
    """
    made = []
    for path in paths:
        for length in range(1, len(path.parts) + 1):
            end = path.parts[-length:]
            if sum(other.parts[-length:] == end for other in paths) == 1:
                break
        made.append("/".join(end) if path.parts else path.resolve().name)
    return made


def _describe(path: Path) -> dict[str, Any]:
    """Return what the list shows of a stored trace; only its name if its attributes cannot be read."""
    try:
        attributes = read_attributes(path, path)
    except (OSError, FloatLensError):
        attributes = {}
    texts = {label: str(attributes.get(key, ""))[:LONGEST] for label, key in LISTED.items()}
    name = str(attributes.get("sample_id", path.name))[:LONGEST]
    return {"id": name, **texts, "diffusion": attributes.get("kind") == "mdm"}
