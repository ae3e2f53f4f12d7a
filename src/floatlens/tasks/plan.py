"""What a comparison asks of whom: models, data, conditions and settings, as one value that the manifest records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.tasks.evaluate import OPEN, Asking


@dataclass(frozen=True)
class Plan:
    """What is to be compared. `passages` puts the gold among so many; `max_passages` cuts a ranked list."""

    models: tuple[str, ...]
    data: tuple[str, ...]
    conditions: tuple[str, ...] = (OPEN,)
    asking: Asking = field(default_factory=Asking)
    split: str | None = None
    limit: int | None = None
    seed: int | None = None
    passages: int | None = None
    max_passages: int | None = None
    corpus: str | None = None
    layout: str | None = None
    names: Mapping[str, str] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("passages", "max_passages"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FloatLensError(f"{name} {value} is not a positive number; for no passages use --closed-book")

    def recorded(self) -> dict[str, Any]:
        """For the manifest: everything asked, with the state of each data file."""
        plain = {**asdict(self), "asking": self.asking.recorded(), "names": dict(self.names or {})}
        return {**plain, "fingerprints": {name: fingerprint(name) for name in self.data}}


def fingerprint(name: str) -> str:
    """What tells one state of a data file from another without reading it all; empty for data that is no file."""
    path = Path(name)
    if not path.is_file():
        return ""
    size, part = path.stat().st_size, 2**20
    with path.open("rb") as file:
        head = file.read(part)
        file.seek(max(0, size - part))
        return hashlib.sha256(str(size).encode() + head + file.read(part)).hexdigest()
