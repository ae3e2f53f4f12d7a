"""What a comparison asks of whom: models, data, conditions and settings, as one value that the manifest records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.evaluation.evaluate import OPEN, Asking


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
        """For the manifest: everything asked."""
        return {**asdict(self), "asking": self.asking.recorded(), "names": dict(self.names or {})}
