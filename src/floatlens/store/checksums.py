"""SHA-256 checksums of results, traces and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floatlens.store.storage import Storage

CHUNK = 1 << 20


def of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def of_value(value: Mapping[str, Any]) -> str:
    """The checksum of a JSON object, regardless of the order of its fields.

    >>> of_value({"a": 1, "b": 2}) == of_value({"b": 2, "a": 1})
    True
    """
    return of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def of_file(path: Path) -> str:
    """The checksum of a file, which is read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def of_tree(storage: Storage, name: str) -> str:
    """One checksum of all files beneath a name and of their names."""
    digest = hashlib.sha256()
    for inside, content in storage.read_many(storage.names(name)):
        digest.update(f"{inside.removeprefix(name)}\0{of_bytes(content)}\n".encode())
    return digest.hexdigest()
