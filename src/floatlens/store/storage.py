"""The files of a run, on a disk or at any URL that fsspec reaches (`s3://`, `gs://`, `memory://`).

Files are written atomically. On a disk this takes a temporary name, a flush and a rename, which fsspec's local file system
does not do; an object store always does so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from floatlens import untrusted
from floatlens.errors import FloatLensError
from floatlens.files import UNFINISHED, write_durably

CONNECTIONS = 16  # requests to a server at a time
CHUNK = 256  # files whose contents are in memory at the same time
BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"}  # stores without folders; buckets are never created
URL = re.compile(r"[a-z][a-z0-9+.-]+://")
CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/@\s]*@")
QUERY = re.compile(r"(?P<url>[a-z][a-z0-9+.-]*://[^\s?]*)\?\S+")


def is_url(location: str | Path) -> bool:
    """Whether a location is a URL and not a path."""
    return URL.match(str(location)) is not None


def hide_credentials(text: str) -> str:
    """A text without the user names, passwords and query strings of the URLs in it."""
    return QUERY.sub(r"\g<url>?...", CREDENTIALS.sub(r"\g<scheme>", text))


class Storage:
    """Files by their names relative to the run, with `/` between the parts. No name leads out of the run.

    >>> str(Storage("runs/a")), str(Storage("memory://a/"))
    ('runs/a', 'memory://a')
    """

    def __init__(self, location: str | Path) -> None:
        self.folder: Path | None = None  # None at a URL
        if not is_url(location):
            self.folder = Path(location).expanduser()  # the shell leaves `--out=~/run` as it is
            self.location = str(self.folder)
            self.files, self.root = fsspec.filesystem("file"), os.path.abspath(self.folder)
            return
        self.location = str(location).rstrip("/")
        try:
            self.files, root = fsspec.core.url_to_fs(self.location)
        except (ValueError, ImportError) as error:
            raise FloatLensError(f"{self} cannot be used as a run folder: {error}") from None
        self.root = str(root).rstrip("/")
        if getattr(self.files, "local_file", False):
            self.folder = Path(self.root)

    def __str__(self) -> str:
        """The location without credentials, for messages."""
        return hide_credentials(self.location)

    def read(self, name: str) -> bytes:
        path = self._path(name)
        if self.folder is not None:
            return untrusted.read_bytes(path, self.folder)
        with self._requests():
            return bytes(self.files.cat_file(path))

    def read_many(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The files of these names, in this order; several are read at a time."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for start in range(0, len(names), CHUNK):
                chunk = names[start : start + CHUNK]
                yield from zip(chunk, pool.map(self.read, chunk), strict=True)

    def write(self, name: str, content: bytes, new: bool = False) -> None:
        """Write a file completely or not at all, replacing one that is there; with `new`, FileExistsError if there is one.

        Object stores guarantee `new` even between two clients at the same time; for fsspec file systems that cannot, the
        file's existence is checked first.
        """
        path = self._path(name)
        if self.folder is not None:
            return write_durably(Path(path), content, new)
        mode = {"mode": "create"} if new else {}
        self.files.invalidate_cache()
        with self._requests():
            try:
                self.files.pipe_file(path, content, **mode)
            except FileNotFoundError:
                protocols = self.files.protocol
                if BUCKETS & ({protocols} if isinstance(protocols, str) else set(protocols)):
                    raise FloatLensError(f"the bucket of {self} does not exist; create it first") from None
                self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.files.pipe_file(path, content, **mode)

    def exists(self, name: str) -> bool:
        with self._requests():
            self.files.invalidate_cache()
            return bool(self.files.exists(self._path(name)))

    def names(self, under: str = "") -> list[str]:
        """Names of all files beneath a name, without hidden ones. Links are not followed."""
        found = list(self._walk(self._path(under)) if self.folder is not None else self._find(under))
        for name in found:
            self._check(name)
        return sorted(name for name in found if not any(part.startswith(".") for part in name.split("/")))

    def _walk(self, top: str) -> Iterator[str]:
        """Names of the regular files beneath a local path."""
        if os.path.islink(top):
            return
        for folder, folders, files in os.walk(top) if os.path.isdir(top) else [(os.path.dirname(top), [], [top])]:
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (os.path.join(folder, name) for name in files):
                if os.path.isfile(path) and not os.path.islink(path):
                    yield os.path.relpath(path, self.root).replace(os.sep, "/")

    def _find(self, under: str) -> list[str]:
        """Names of all objects beneath a name at a URL."""
        with self._requests():
            self.files.invalidate_cache()
            try:
                paths = [path for path in self.files.find(self._path(under)) if not path.endswith("/")]
            except FileNotFoundError:
                return []
        return [path.lstrip("/").removeprefix(self.root.lstrip("/") + "/") for path in paths]

    def move(self, name: str, to: str) -> None:
        """Move a file or everything beneath a name; an object store cannot rename."""
        for each in self.names(name):
            self.write(to + each.removeprefix(name), self.read(each))
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a file or everything beneath a name; a link is removed, not its target."""
        path = self._path(name)
        if self.folder is None:
            with self._requests():
                if paths := [f"{self.root}/{each}" for each in self._find(name)]:
                    self.files.rm(paths)
        elif os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def upload(self, local: Path, name: str) -> None:
        """Copy a local folder to a name, replacing existing files."""
        self.remove(name)
        paths = [path for path in local.rglob("*") if path.is_file()]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(lambda p: self.write(f"{name}/{p.relative_to(local).as_posix()}", p.read_bytes()), paths))

    def download(self, name: str, local: Path) -> None:
        """Copy everything beneath a name into a local folder."""
        for inside, content in self.read_many(self.names(name)):
            target = local / inside.removeprefix(f"{name}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def remove_partial(self) -> None:
        """Remove partial files of killed processes; object stores have none."""
        if self.folder is None:
            return
        for pattern in (".*", "results/.*", "results/*/.*", "samples/.*", "figures/.*", "findings/.*"):
            for path in self.folder.glob(pattern):
                if UNFINISHED.fullmatch(path.name):
                    self.remove(path.relative_to(self.folder).as_posix())

    def _path(self, name: str) -> str:
        """The full path of a name; raise an error if it leads out of the run, after following links."""
        if not name:
            return self.root
        self._check(name)
        path = f"{self.root}/{name}"
        if self.folder is not None:
            untrusted.inside(os.path.dirname(path), self.root)
        return path

    def _check(self, name: str) -> None:
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            raise FloatLensError(
                f"{self} contains a file named {name!r}, which leads out of the run; do not use this run"
            )

    @contextmanager
    def _requests(self) -> Iterator[None]:
        """Convert errors of a remote server to FloatLensError; a missing file stays FileNotFoundError."""
        try:
            yield
        except (FloatLensError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            if self.folder is not None:
                raise
            text: Any = " ".join(str(error).split()) or type(error).__name__
            raise FloatLensError(
                f"{self} returned an error ({hide_credentials(text)}); "
                "finished results are kept: try again with --resume"
            ) from error


def hash_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def hash_value(value: Mapping[str, Any]) -> str:
    """The SHA-256 of a JSON object, regardless of the order of its fields."""
    return hash_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def hash_tree(storage: Storage, name: str) -> str:
    """One SHA-256 of all files beneath a name and of their names."""
    digest = hashlib.sha256()
    for inside, content in storage.read_many(storage.names(name)):
        digest.update(f"{inside.removeprefix(name)}\0{hash_bytes(content)}\n".encode())
    return digest.hexdigest()
