"""The traces of run folders, opened when they are asked for, so that a large run never lies in memory whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.record.trace import Trace


class RunTraces(Sequence[Trace]):
    """A sequence of traces on disk; `watch` is told how many there are, and what it returns is called for each."""

    def __init__(
        self, folders: Sequence[Any], limit: int | None = None, watch: Callable[[int], Callable[[], None]] | None = None
    ) -> None:
        self.paths = [path for folder in folders for _, path in folder.samples()[:limit]]
        if not self.paths:
            names = ", ".join(str(folder.path) for folder in folders)
            raise FloatLensError(f"{names} holds no traces; make some with `floatlens trace`")
        self.advance = watch(len(self)) if watch else lambda: None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [Trace.open(path) for path in self.paths[place]]
        return Trace.open(self.paths[place])

    def __iter__(self) -> Iterator[Trace]:
        for place in range(len(self)):
            yield self[place]
            self.advance()
