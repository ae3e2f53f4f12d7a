"""The run folders that the server was given: what is in them, by number, and never anything else.

A page names a run and a sample by their places in the list; no text of a request becomes part of a path. A sample that
is, or holds, a link to somewhere outside of its run is not read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.report.explorer.film import film
from floatlens.runs.folder import MANIFEST, RunFolder
from floatlens.trace import Trace

ABOUT = ("model", "question", "output", "diffusion")
LONGEST = 300  # characters of a question in the list


class Folders:
    """Some run folders, read-only. A sample keeps its number while the server runs, whatever is added to its run."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [path.resolve() for path in paths]
        self.names = names([Path(path) for path in paths])
        self.known: list[dict[Path, str]] = [{} for _ in paths]
        self.reading = Lock()
        self._made = lru_cache(maxsize=8)(_film)

    def contents(self) -> list[dict[str, Any]]:
        """Each run with its samples, in the order of their numbers."""
        return [
            {
                "run": run,
                "name": name,
                "samples": [
                    {"sample": place, **_about(path, sample_id)}
                    for place, (path, sample_id) in enumerate(self._samples(run))
                ],
            }
            for run, name in enumerate(self.names)
        ]

    def film(self, run: int, sample: int) -> dict[str, Any]:
        """The film of a sample; the last few are kept."""
        return self._made(self.path(run, sample))

    def path(self, run: int, sample: int) -> Path:
        """Return the folder of a sample's trace."""
        if not 0 <= run < len(self.paths):
            raise FloatLensError(f"run {run} does not exist; there are {len(self.paths)}, counted from 0")
        samples = self._samples(run)
        if not 0 <= sample < len(samples):
            raise FloatLensError(f"sample {sample} does not exist; run {run} has {len(samples)}, counted from 0")
        path = samples[sample][0]
        if not inside(path, self.paths[run]):
            raise FloatLensError(f"sample {sample} of run {run} is no longer inside its run")
        return path

    def _samples(self, run: int) -> list[tuple[Path, str]]:
        with self.reading:
            for sample_id, path in RunFolder.open(self.paths[run]).samples():
                if path not in self.known[run] and inside(path, self.paths[run]):
                    self.known[run][path] = sample_id
            return list(self.known[run].items())


def _film(path: Path) -> dict[str, Any]:
    try:
        made = film(Trace.open(path))
        json.dumps(made, allow_nan=False)
    except FloatLensError:
        raise
    except Exception as error:  # what a broken file brings about has no end: codecs, JSON, shapes
        raise FloatLensError(f"sample {path.name} cannot be shown: {type(error).__name__}: {error}") from error
    return made


def runs_in(path: Path) -> list[Path]:
    """The run folders with traces that a folder is or holds: itself, or those one or two levels under it, as a study's.

    A run of its own is taken even without a trace, so that one that has only begun can be looked at.
    """
    found = [place for pattern in ("*", "*/*") for place in path.glob(f"{pattern}/{MANIFEST}") if _traces(place.parent)]
    if found and not _traces(path):
        return sorted(place.parent for place in found)
    return [path] if (path / MANIFEST).is_file() and (path / "samples").is_dir() else []


def _traces(path: Path) -> bool:
    return any((path / "samples").glob("*/zarr.json"))


def inside(path: Path, root: Path) -> bool:
    """Does a folder lie inside `root`, with all that it holds, links followed?"""
    if not path.resolve().is_relative_to(root):
        return False
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                return False
    return True


def names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart.

    >>> names([Path("a/tiny-mdm"), Path("b/tiny-mdm"), Path("c")])
    ['a/tiny-mdm', 'b/tiny-mdm', 'c']
    """
    made = []
    for path in paths:
        for length in range(1, len(path.parts) + 1):
            end = path.parts[-length:]
            if sum(other.parts[-length:] == end for other in paths) == 1:
                break
        made.append("/".join(end) if path.parts else str(path.resolve().name))
    return made


def _about(path: Path, sample_id: str) -> dict[str, Any]:
    """What the list says of a sample; of one that cannot be read its id."""
    try:
        attributes = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        found = {name: str(attributes.get(name, ""))[:LONGEST] for name in ABOUT}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        found = dict.fromkeys(ABOUT, "")
    return {
        "id": sample_id[:LONGEST],
        "model": found["model"],
        "question": found["question"],
        "answer": found["output"],
        "diffusion": found["diffusion"] == "1",
    }
