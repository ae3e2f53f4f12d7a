"""Imports go in one direction: no module imports from a later folder, not even inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "floatlens"

# From the first to the last. A module belongs to the longest name that it starts with, and may import from its own layer
# and from those above it in this list.
ROOMS = (
    ("version", "errors", "files", "untrusted", "registry", "specs", "stats", "anchors", "options", "keywords"),
    ("data",),
    ("models",),
    ("decode",),
    ("attention",),
    ("interventions",),
    ("trace",),
    ("lens",),
    ("store",),
    ("evaluation",),
    ("lm_eval",),
    ("paper",),
    ("findings",),
    ("explorer",),
    ("studies",),
    ("cli", "__main__"),
    ("__init__",),
)

EXCEPTIONS = {
    (
        "trace.trace",
        "explorer.widget",
    ): "trace.explore() shows a trace in a notebook; who does not call it loads nothing",
}


@cache
def modules() -> dict[str, Path]:
    """Every module by its name under floatlens; a package by the name of its folder."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imports(name: str, path: Path) -> Iterator[str]:
    """Modules of floatlens that a module imports, anywhere in it but under `if TYPE_CHECKING`, where nothing is loaded."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "floatlens"]
            yield from (name.partition(".")[2] or "__init__" for name in names)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                start = ".".join(["floatlens", *package[: len(package) - node.level + 1], *filter(None, [node.module])])
            if start == "floatlens" or start.startswith("floatlens."):
                yield from (_module_of(start.removeprefix("floatlens").lstrip("."), alias.name) for alias in node.names)


def _module_of(start: str, name: str) -> str:
    """What `from start import name` imports: the module `start.name` if there is one, else `start`."""
    whole = f"{start}.{name}" if start else name
    return whole if whole in modules() else start or "__init__"


def layer(name: str) -> int | None:
    """The place of a module in the line."""
    fits = [(len(entry), i) for i, row in enumerate(ROOMS) for entry in row if f"{name}.".startswith(f"{entry}.")]
    return max(fits)[1] if fits else None


@cache
def against() -> frozenset[tuple[str, str]]:
    """Pairs of modules of which the earlier imports the later."""
    found = set()
    for name, path in modules().items():
        for other in imports(name, path):
            here, there = layer(name), layer(other)
            if here is not None and there is not None and there > here:
                found.add((name, other))
    return frozenset(found)


def test_every_module_has_its_place_in_the_line() -> None:
    homeless = [name for name in modules() if layer(name) is None]
    assert not homeless, f"say in ROOMS where these belong: {', '.join(homeless)}"


def test_nothing_imports_what_comes_after_it() -> None:
    wrong = sorted(against() - EXCEPTIONS.keys())
    assert not wrong, "\n".join(
        f"floatlens.{name} imports floatlens.{other}, which comes after it" for name, other in wrong
    )


def test_no_exception_is_left_that_is_not_needed() -> None:
    assert EXCEPTIONS.keys() <= against()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from floatlens.studies.report import make", "studies.report"),
        ("from floatlens.studies import report", "studies.report"),
        ("from floatlens import lens", "lens"),
        ("from floatlens import load", "__init__"),
        ("import floatlens.cli.main", "cli.main"),
        ("import floatlens as fl", "__init__"),
        ("def f():\n    from floatlens.cli import main", "cli.main"),
        ("from ..studies import report", "studies.report"),
        ("from .table import table1", "evaluation.table"),
    ],
)
def test_every_way_to_import_is_seen(line: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text(line)
    assert list(imports("evaluation.new", path)) == [expected]
