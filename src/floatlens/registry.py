"""Named things that can be added from one file, inside the package or outside it.

A registry knows the folder its built-in entries live in and imports it on the first look-up; each file there registers
itself with one line. Packages of users do the same: their entry point in the group `floatlens.plugins` names a module,
and importing that module registers what it defines.

    [project.entry-points."floatlens.plugins"]
    my-package = "my_package.floatlens_plugin"
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from floatlens.errors import FloatLensError

GROUP = "floatlens.plugins"
T = TypeVar("T")


@dataclass
class Plugins:
    """The plug-ins of this process: those that were loaded, by name and version, and those that failed, with the reason."""

    loaded: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _done: bool = False

    def load(self) -> None:
        """Import the module of every entry point once. A plug-in that fails is reported by name; the others still load."""
        if self._done:
            return
        self._done = True
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
            try:
                importlib.import_module(entry.value.partition(":")[0])
            except Exception as error:
                self.failed[entry.name] = f"{type(error).__name__}: {error}"
                warnings.warn(f"plug-in {entry.name!r} ({entry.value}) failed to load: {error}", stacklevel=2)
            else:
                self.loaded[entry.name] = entry.dist.version if entry.dist is not None else "unknown"


plugins = Plugins()


class Registry(Generic[T]):
    """Entries of one kind by name.

    Parameters
    ----------
    noun
        What an entry is called in error messages, such as "sampler".
    package
        The package whose modules register the built-in entries; imported on the first look-up.

    >>> colours: Registry[int] = Registry("colour")
    >>> colours.add("red", 1)
    1
    >>> colours.add("red", 2)
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: the colour 'red' is already registered; choose another name
    """

    def __init__(self, noun: str, package: str | None = None) -> None:
        self.noun, self.package = noun, package
        self._entries: dict[str, tuple[int, T]] = {}
        self._loaded = False

    def add(self, name: str, entry: T, *, priority: int = 0) -> T:
        """Add an entry and return it. Entries with a higher priority come first, then those that were added first."""
        known = self._entries.get(name)
        if known is not None and not _same_source(known[1], entry):
            raise FloatLensError(f"the {self.noun} {name!r} is already registered; choose another name")
        self._entries[name] = (priority, entry)
        return entry

    def load(self) -> None:
        """Import the built-in entries and the plug-ins, once."""
        if self._loaded:
            return
        self._loaded = True
        if self.package is not None:
            folder = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(folder.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        plugins.load()

    def names(self) -> list[str]:
        """The names of all entries, those with the highest priority first."""
        self.load()
        return sorted(self._entries, key=lambda name: -self._entries[name][0])

    def __getitem__(self, name: str) -> T:
        self.load()
        if name not in self._entries:
            raise FloatLensError(f"there is no {self.noun} {name!r}; choose one of {', '.join(self.names())}")
        return self._entries[name][1]

    def __contains__(self, name: object) -> bool:
        self.load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def values(self) -> list[T]:
        """All entries, in the order of `names`."""
        return [self._entries[name][1] for name in self.names()]

    def items(self) -> list[tuple[str, T]]:
        """All names with their entries, in the order of `names`."""
        return [(name, self._entries[name][1]) for name in self.names()]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Forget, at the end of the block, what was added inside it; for tests."""
        self.load()
        before = dict(self._entries)
        try:
            yield
        finally:
            self._entries = before


def _same_source(one: Any, other: Any) -> bool:
    """Whether both come from the same line of code, as when a notebook cell or a module is run again."""
    place = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (one, other)]
    return place[0] == place[1] and None not in place[0]
