"""An object store with as little as such a store has: whole objects by flat keys, no folders, no renaming, no appending."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem


class Bucket(AbstractFileSystem):
    """Objects in memory. What an object store cannot do fails the test that asks for it."""

    protocol = "bucket"
    cachable = False
    objects: ClassVar[dict[str, tuple[bytes, datetime]]] = {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        key = self._strip_protocol(path)
        if mode == "create" and key in self.objects:
            raise FileExistsError(path)
        self.objects[key] = (bytes(value), datetime.now(UTC))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        try:
            return self.objects[self._strip_protocol(path)][0][start:end]
        except KeyError:
            raise FileNotFoundError(path) from None

    def rm_file(self, path: str) -> None:
        self.objects.pop(self._strip_protocol(path), None)

    def modified(self, path: str) -> datetime:
        return self.objects[self._strip_protocol(path)][1]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Objects and common prefixes one level down, as a listing with a delimiter gives them."""
        path = self._strip_protocol(path)
        if path in self.objects:
            found = {path: self._about(path)}
        else:
            top = f"{path}/" if path else ""
            inside = [key for key in self.objects if key.startswith(top)]
            if not inside:
                raise FileNotFoundError(path)
            found = {}
            for key in inside:
                name, deeper, _rest = key.removeprefix(top).partition("/")
                one = top + name
                found[one] = {"name": one, "size": 0, "type": "directory"} if deeper else self._about(one)
        return list(found.values()) if detail else sorted(found)

    def _about(self, key: str) -> dict[str, Any]:
        return {"name": key, "size": len(self.objects[key][0]), "type": "file"}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no folders to make."""

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("an object store cannot do this")

    mv = move = rename = cp_file = copy = touch = _open = open = mkdir = rmdir = _refused


fsspec.register_implementation("bucket", Bucket, clobber=True)
