"""How a command's models are loaded: the same in every process that an engine starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floatlens.runs.threads import settle


@dataclass(frozen=True)
class Loader:
    """Loads a model by its name, wherever that is done; `without_weights` finds it without its weights."""

    device: str | None = None
    dtype: str = "auto"
    allow_pickle: bool = False
    revision: str | None = None
    family: str | None = None

    def __call__(self, name: str) -> Any:
        from floatlens.lens import load

        options: dict[str, Any] = {"device_map": self.device, "dtype": self.dtype, "allow_pickle": self.allow_pickle}
        return settle(load(name, revision=self.revision, family=self.family, **options))

    def without_weights(self, name: str) -> Any:
        from floatlens.lens import Lens
        from floatlens.models.checkpoint import find

        return Lens(find(name, revision=self.revision, family=self.family))
