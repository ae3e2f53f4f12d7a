"""Traces of recent runs that a page may save, and the ZIP archive in which a trace is sent."""

from __future__ import annotations

import os
import secrets
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from threading import Lock

from floatlens.errors import FloatLensError
from floatlens.trace.trace import Trace

FOLDER = "trace"  # its name in the archive


class TraceCache:
    """Traces by key, each with its owner. The oldest are dropped when together they exceed `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: OrderedDict[str, tuple[Hashable, Trace]] = OrderedDict()
        self.lock = Lock()

    def add(self, owner: Hashable, trace: Trace) -> str | None:
        """Keep a trace; return its key, or None if it alone is too large."""
        if trace.data.nbytes > self.limit:
            return None
        key = secrets.token_urlsafe(12)
        with self.lock:
            self.kept[key] = (owner, trace)
            while sum(one.data.nbytes for _, one in self.kept.values()) > self.limit:
                self.kept.popitem(last=False)
        return key

    def get(self, key: str) -> Trace:
        found = self.kept.get(key)
        if found is None:
            raise FloatLensError("the trace of this run is no longer kept; press Write to run it again")
        return found[1]

    def drop(self, owner: Hashable) -> None:
        """Drop all traces of an owner."""
        with self.lock:
            for key in [key for key, (other, _) in self.kept.items() if other == owner]:
                del self.kept[key]


def archive_of(trace: Trace) -> Path:
    """Write a trace as Zarr into a ZIP archive, a temporary file that the caller removes."""
    with tempfile.TemporaryDirectory() as folder:
        return archive(trace.save(Path(folder, FOLDER), dtype="float32"))


def archive(folder: Path) -> Path:
    """Put the files of a saved trace into a ZIP archive, a temporary file that the caller removes."""
    handle, name = tempfile.mkstemp(suffix=".zip")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as made:  # Zarr has compressed its chunks
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    made.write(path, Path(FOLDER, path.relative_to(folder)))
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)
