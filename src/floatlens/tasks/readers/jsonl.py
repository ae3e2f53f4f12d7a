"""One JSON object a line, plain or `.gz`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from floatlens.tasks.readers.fields import Record, kind
from floatlens.tasks.readers.lines import lines
from floatlens.tasks.readers.problems import Problems


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
        if isinstance(value, dict):
            yield number, value
        else:
            problems.add(path.name, number, f"is {kind(value)}; expected one JSON object a line")
