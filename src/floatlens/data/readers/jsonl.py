"""JSON lines: one object per line, plain or `.gz`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatlens.data.readers.fields import Record, kind
from floatlens.data.readers.lines import lines
from floatlens.data.readers.problems import Problems
from floatlens.data.readers.registry import FileFormat, register_reader


def records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Yield line numbers and objects."""
    for number, line in lines(path, problems):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
            problems.add(path.name, number, f"is not JSON ({reason})")
            continue
        if "\\ud" in line.lower() and not _is_text(value):
            problems.add(path.name, number, "has half of a surrogate pair, which is not text")
        elif isinstance(value, dict):
            yield number, value
        else:
            problems.add(path.name, number, f"is {kind(value)}; expected one JSON object per line")


def _is_text(value: Any) -> bool:
    """Return whether everything in a record can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


register_reader(FileFormat("jsonl", (".jsonl", ".json"), records), priority=30)
