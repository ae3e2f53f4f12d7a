"""Where the files of a run lie: a folder on disk, or any place that fsspec reaches (`s3://`, `gs://`, `memory://`).

Both write a file whole or not at all. A folder does so by a temporary name that is renamed; an object store by nature.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any, Protocol

from floatlens.errors import FloatLensError

PARTIAL = ".partial-"  # temporary names begin so; what a killed process left of them is swept up on resume


class Storage(Protocol):
    """Files by their names relative to the run, with `/` between the parts."""

    place: str

    def read(self, name: str) -> bytes: ...
    def write(self, name: str, content: bytes) -> None: ...
    def exists(self, name: str) -> bool: ...
    def names(self, under: str = "") -> list[str]: ...
    def move(self, name: str, to: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def put(self, local: Path, name: str) -> None: ...
    def get(self, name: str, local: Path) -> None: ...
    def age(self, name: str) -> float: ...


def storage_at(place: str | Path) -> Disk | Remote:
    """The storage that a path or URL names.

    >>> storage_at("runs/a").place
    'runs/a'
    >>> storage_at("memory://a").place
    'memory://a'
    """
    return Remote(str(place)) if is_url(place) else Disk(Path(place))


def is_url(place: str | Path) -> bool:
    """
    >>> is_url("s3://bucket/run"), is_url("C:/run"), is_url("run")
    (True, False, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]+://", str(place)) is not None


class Disk:
    """A folder on this machine or on a disk that is shared."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = str(root)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        target = self.root / name
        temporary = target.parent / f"{PARTIAL}{uuid.uuid4().hex}"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def names(self, under: str = "") -> list[str]:
        """All files beneath, without those that were being written."""
        top = self.root / under
        found = []
        for folder, inner, files in os.walk(top):
            inner[:] = [name for name in inner if not _partial(name)]
            found += [str(Path(folder, name).relative_to(self.root)) for name in files if not _partial(name)]
        return sorted(found)

    def move(self, name: str, to: str) -> None:
        target = self.root / to
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.root / name, target)

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def put(self, local: Path, name: str) -> None:
        os.replace(local, self.root / name)

    def get(self, name: str, local: Path) -> None:
        shutil.copytree(self.root / name, local)

    def age(self, name: str) -> float:
        """Seconds since the file was last written."""
        import time

        return time.time() - (self.root / name).stat().st_mtime

    def sweep(self) -> None:
        """Remove what a killed process was writing."""
        for part in ("results", "samples", "figures", "findings", ""):
            top = self.root / part
            for path in [*top.glob("*"), *(top.glob("*/*") if part == "results" else ())]:
                if _partial(path.name):
                    self.remove(str(path.relative_to(self.root)))


def _partial(name: str) -> bool:
    return name.startswith(".")


class Remote:
    """A place that fsspec reaches by a URL. An object appears whole, so no temporary name is needed."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.place = url.rstrip("/")
        try:
            self.files, self.root = fsspec.core.url_to_fs(self.place)
        except (ValueError, ImportError) as error:
            raise FloatLensError(f"{url} cannot be used as a run folder: {error}") from None

    def read(self, name: str) -> bytes:
        return bytes(self.files.cat_file(f"{self.root}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        self._folder_of(name)
        self.files.pipe_file(f"{self.root}/{name}", content)

    def exists(self, name: str) -> bool:
        return bool(self.files.exists(f"{self.root}/{name}"))

    def names(self, under: str = "") -> list[str]:
        top = f"{self.root}/{under}".rstrip("/")
        self.files.invalidate_cache()
        found: list[str] = self.files.find(top) if self.files.exists(top) else []
        root = self.root.lstrip("/") + "/"
        return sorted(path.lstrip("/").removeprefix(root) for path in found)

    def move(self, name: str, to: str) -> None:
        """Object by object: a store has no renaming, and not every filesystem's `mv` moves what lies beneath a name."""
        inside = self.names(name)
        for each in inside:
            self.write(to + each.removeprefix(name), self.read(each))
        for each in inside:
            self.files.rm_file(f"{self.root}/{each}")

    def remove(self, name: str) -> None:
        for each in self.names(name):
            self.files.rm_file(f"{self.root}/{each}")

    def put(self, local: Path, name: str) -> None:
        self.remove(name)
        self._folder_of(name)
        for path in sorted(p for p in local.rglob("*") if p.is_file()) if local.is_dir() else [local]:
            inside = f"{name}/{path.relative_to(local).as_posix()}" if local.is_dir() else name
            self.write(inside, path.read_bytes())

    def get(self, name: str, local: Path) -> None:
        for inside in self.names(name):
            target = local / inside.removeprefix(f"{name}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.read(inside))

    def age(self, name: str) -> float:
        from datetime import UTC, datetime

        self.files.invalidate_cache()
        written: Any = self.files.modified(f"{self.root}/{name}")
        written = written if written.tzinfo else written.replace(tzinfo=UTC)
        return float((datetime.now(UTC) - written).total_seconds())

    def sweep(self) -> None:
        """Nothing is ever half there."""

    def _folder_of(self, name: str) -> None:
        self.files.makedirs(f"{self.root}/{name}".rpartition("/")[0], exist_ok=True)
