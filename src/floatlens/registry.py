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
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

from floatlens.errors import FloatLensError, unknown_name

GROUP = "floatlens.plugins"
PLUGINS: dict[str, str] = {}  # versions of the plug-ins that were loaded
FAILED: dict[str, str] = {}  # reasons of those that failed
T = TypeVar("T")
_lock = threading.RLock()
_asked = False


def load_plugins() -> dict[str, str]:
    """Import the module of every entry point once, and return the versions of the plug-ins; those that fail are named."""
    global _asked
    with _lock:
        found, _asked = [] if _asked else sorted(entry_points(group=GROUP), key=lambda entry: entry.name), True
        for entry in found:
            try:
                importlib.import_module(entry.value.partition(":")[0])
            except Exception as error:
                FAILED[entry.name] = f"{type(error).__name__}: {error}"
                warnings.warn(f"plug-in {entry.name!r} ({entry.value}) failed to load: {error}", stacklevel=2)
            else:
                PLUGINS[entry.name] = entry.dist.version if entry.dist is not None else "unknown"
    return PLUGINS


class Registry(Mapping[str, T]):
    """Entries of one kind by name: those with the highest priority first, then the built-in ones in the order of `modules`.

    Parameters
    ----------
    noun
        What an entry is called in error messages, such as "sampler".
    package, modules
        The modules of the package that register the built-in entries, imported on the first look-up.

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
        self._entries: dict[str, tuple[int, T, Any]] = {}  # with their priority and their source
        self._started = self._loaded = False
        self._lock = threading.RLock()

    def add(self, name: str, entry: T, *, priority: int = 0, source: Any = None) -> T:
        """Add an entry and return it.

        It is an error if the name is taken, unless the same line of code adds it again, as when a notebook cell is run
        twice: `source` is the class or function that is compared, by default the entry itself.
        """
        source = entry if source is None else source
        if not str(getattr(source, "__module__", None)).startswith(f"{self.package}."):
            self._load_built_in()  # so that a plug-in cannot take the name of a built-in entry
        if name in self._entries and not _same_source(self._entries[name][2], source):
            raise FloatLensError(f"the {self.noun} {name!r} is already registered; choose another name")
        self._entries[name] = priority, entry, source
        return entry

    def load(self) -> None:
        """Import the built-in entries and the plug-ins once; other threads wait until this is done."""
        if not self._loaded:
            with self._lock:
                self._load_built_in()
                load_plugins()
                self._loaded = True

    def _load_built_in(self) -> None:
        with self._lock:
            started, self._started = self._started, True  # a module of the package may use the registry while it loads
            for module in () if started else self.modules:
                importlib.import_module(f"{self.package}.{module}")

    def _position(self, name: str) -> tuple[int, int]:
        """Return the sorting key of an entry. It does not depend on which module was imported first."""
        priority, _, source = self._entries[name]
        module = str(getattr(source, "__module__", None)).removeprefix(f"{self.package}.")
        return -priority, self.modules.index(module) if module in self.modules else len(self.modules)

    def names(self) -> list[str]:
        """The names of all entries in their order."""
        self.load()
        return sorted(self._entries, key=self._position)

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

    def __len__(self) -> int:
        return len(self.names())


def _same_source(one: Any, other: Any) -> bool:
    """Whether both come from the same place in the code, as when a notebook cell or a module is run again."""
    sources = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (one, other)]
    return sources[0] == sources[1] and None not in sources[0]
