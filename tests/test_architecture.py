"""The architecture page names the files that one prompt passes, in order, and the folders in import order."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floatlens.attention.session import Session
from floatlens.attention.statistics.received import Received
from floatlens.cli.main import run
from floatlens.data.prompt import Prompt
from floatlens.data.sample import Sample
from floatlens.store.folder import RunFolder
from floatlens.trace.recorder import Recorder
from floatlens.trace.trace import Trace
from tests.test_direction import ROOMS, SOURCE

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
AT_MOST = 16

# The moments at which the call stack is read, in the order in which a prompt meets them: its sample is read, its prompt
# is built, its attention is observed and recorded, its trace is made and saved.
MOMENTS: tuple[tuple[type, str], ...] = (
    (Sample, "__init__"),
    (Prompt, "__init__"),
    (Session, "see"),
    (Received, "result"),
    (Recorder, "add"),
    (Trace, "__init__"),
    (Trace, "save"),
    (RunFolder, "put"),
)


def section(title: str) -> str:
    """Return the text of a section of the page."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def files_on_the_stack() -> list[str]:
    """Return the files of the package whose functions are being executed, the outermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            found.append(path.relative_to(SOURCE).as_posix())
        frame = frame.f_back  # type: ignore[assignment]
    return found[::-1]


def test_the_page_names_the_files_that_a_prompt_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: dict[tuple[type, str], list[str]] = {}

    def watch(moment: tuple[type, str]) -> Callable[..., Any]:
        function = getattr(*moment)
        own = Path(inspect.unwrap(function).__code__.co_filename)

        def called(*arguments: Any, **named: Any) -> Any:
            inside = [own.relative_to(SOURCE).as_posix()] if own.is_relative_to(SOURCE) else []
            stacks.setdefault(moment, files_on_the_stack() + inside)
            return function(*arguments, **named)

        return called

    for moment in MOMENTS:
        monkeypatch.setattr(*moment, watch(moment))
    settings = ("--limit", "1", "--passages", "2", "--max-new-tokens", "2", "--json")
    assert run(["trace", "tiny-mdm", "--data", "world:fresh", *settings, "--out", str(tmp_path / "run")]) == 0

    passed = list(dict.fromkeys(file for moment in MOMENTS for file in stacks[moment]))
    named = re.findall(r"^\| \d+ \| `([\w/]+\.py)`", section("The path of one prompt"), re.MULTILINE)
    assert passed == named
    assert len(passed) <= AT_MOST


def test_the_helpers_that_the_page_names_exist() -> None:
    rows = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|.*\| (.*) \|$", section("The path of one prompt"), re.MULTILINE)
    assert rows
    for file, helpers in rows:
        for name in re.findall(r"`([\w/.]+)`", helpers):
            assert any((root / name).exists() for root in ((SOURCE / file).parent, SOURCE)), f"{file}: {name}"


def test_the_page_lists_the_folders_in_import_order() -> None:
    listed = re.findall(r"^\| `(\w+)/?(?:\.py)?`", section("The folders"), re.MULTILINE)
    rooms = [row[0] for row in ROOMS[1:-1]]
    assert listed == rooms
