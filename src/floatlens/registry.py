"""Registries of named entries, each of which can be added from one file inside or outside the package.

A registry names the modules of its built-in entries and imports them on the first look-up; each of them registers itself
with one line. Users' packages do the same: their entry point in the group `floatlens.plugins` names a module, and importing
that module registers its entries.

    [project.entry-points."floatlens.plugins"]
    my-package = "my_package.floatlens_plugin"
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from floatlens.errors import FloatLensError, unknown_name

GROUP = "floatlens.plugins"
T = TypeVar("T")


@dataclass
class Plugins:
    """The plug-ins of this process: those that were loaded, by name and version, and those that failed, with the reason."""

    loaded: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _started: bool = False
    _lock: Any = field(default_factory=threading.RLock)

    def load(self) -> None:
        """Import the module of every entry point once. A plug-in that fails is reported by name; the others still load."""
        with self._lock:
            if not self._started:
                self._started = True
                self._load()

    def _load(self) -> None:
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
    package, modules
        The modules of the package that register the built-in entries, imported in this order on the first look-up.

    >>> colours: Registry[int] = Registry("colour")
    >>> colours.add("red", 1)
    1
    >>> colours.add("red", 2)
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: the colour 'red' is already registered; choose another name
    >>> colours["redd"]
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: unknown colour 'redd'; did you mean 'red'?
    """

    def __init__(self, noun: str, package: str = "", modules: Sequence[str] = ()) -> None:
        self.noun, self.package, self.modules = noun, package, modules
        self._entries: dict[str, tuple[int, T]] = {}
        self._sources: dict[str, Any] = {}
        self._started = self._loaded = False
        self._lock = threading.RLock()

    def add(self, name: str, entry: T, *, priority: int = 0, source: Any = None) -> T:
        """Add an entry and return it. Entries with a higher priority come first, then those added first.

        It is an error if the name is taken, unless the same line of code adds it again, as when a notebook cell is run
        twice: `source` is the class or function that is compared, by default the entry itself.
        """
        source = entry if source is None else source
        if not str(getattr(source, "__module__", None)).startswith(f"{self.package}."):
            self._load_built_in()  # so that a plug-in cannot take the name of a built-in entry
        if name in self._entries and not _same_source(self._sources[name], source):
            raise FloatLensError(f"the {self.noun} {name!r} is already registered; choose another name")
        self._entries[name], self._sources[name] = (priority, entry), source
        return entry

    def load(self) -> None:
        """Import the built-in entries and the plug-ins once; other threads wait until this is done."""
        if self._loaded:
            return
        with self._lock:
            self._load_built_in()
            plugins.load()
            self._loaded = True

    def _load_built_in(self) -> None:
        with self._lock:
            # started: a module of the package uses the registry while it loads
            if self._started:
                return
            self._started = True
            for module in self.modules:
                importlib.import_module(f"{self.package}.{module}")

    def names(self) -> list[str]:
        """The names of all entries, those with the highest priority first."""
        self.load()
        return sorted(self._entries, key=lambda name: -self._entries[name][0])

    def __getitem__(self, name: str) -> T:
        self.load()
        if name not in self._entries:
            raise unknown_name(self.noun, name, self.names())
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
        """Remove, at the end of the block, the entries that were added inside it; for tests."""
        self.load()
        before = dict(self._entries), dict(self._sources)
        try:
            yield
        finally:
            self._entries, self._sources = before


def _same_source(one: Any, other: Any) -> bool:
    """Whether both come from the same place in the code, as when a notebook cell or a module is run again."""
    sources = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (one, other)]
    return sources[0] == sources[1] and None not in sources[0]
