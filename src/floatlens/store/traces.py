"""The traces of run folders, opened one by one, so that a large run is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, overload

from floatlens.errors import FloatLensError
from floatlens.store.folder import MANIFEST, RunFolder
from floatlens.store.run_list import REPLAYS
from floatlens.trace.trace import Trace


class TraceFolder(Protocol):
    """A folder of traces: a run, or some of the traces of one."""

    def samples(self) -> list[tuple[str, Path]]: ...


class RunTraces(Sequence[Trace]):
    """A sequence of traces on disk.

    Parameters
    ----------
    limit: maximum number of traces per run folder.
    watch: called with the number of traces; returns a function that is called once per trace while iterating.
    """

    def __init__(
        self,
        folders: Sequence[TraceFolder],
        limit: int | None = None,
        watch: Callable[[int], Callable[[], None]] | None = None,
    ) -> None:
        self.paths = [path for folder in folders for _, path in folder.samples()[:limit]]
        if not self.paths:
            names = ", ".join(str(folder) for folder in folders)
            raise FloatLensError(f"{names} has no traces; create some with `floatlens trace`")
        self.folders = folders
        self.advance = watch(len(self)) if watch else lambda: None

    def replays(self) -> Iterator[Trace]:
        """The traces of replayed texts of a study, in addition to those of its models' own answers."""
        for folder in self.folders:
            inside = getattr(folder, "path", Path()) / REPLAYS
            if (inside / MANIFEST).exists():
                yield from (Trace.open(path) for _, path in RunFolder.open(inside).samples())

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Trace: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trace]: ...

    def __getitem__(self, index: int | slice) -> Trace | list[Trace]:
        if isinstance(index, slice):
            return [Trace.open(path) for path in self.paths[index]]
        return Trace.open(self.paths[index])

    def __iter__(self) -> Iterator[Trace]:
        for path in self.paths:
            yield Trace.open(path)
            self.advance()
