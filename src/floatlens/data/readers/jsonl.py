"""One JSON object a line, plain or `.gz`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatlens.data.readers.fields import Record, kind
from floatlens.data.readers.lines import lines
from floatlens.data.readers.problems import Problems


def records(path: Path, problems: Problems) -> Iterator[tuple[int, Record]]:
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
            problems.add(path.name, number, "holds half of a surrogate pair, which is no text")
        elif isinstance(value, dict):
            yield number, value
        else:
            problems.add(path.name, number, f"is {kind(value)}; expected one JSON object a line")


def _is_text(value: Any) -> bool:
    """Whether everything in a record can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
