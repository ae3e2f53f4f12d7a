"""How a command loads its models: the same in every process that an engine starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.models.checkpoint import Checkpoint

SMALL = 512  # width below which a layer's matrix products are too small to share


@dataclass(frozen=True)
class Loader:
    """Loads models by their names in the process that calls it; the fields are the options of `floatlens.load`."""

    device: str | None = None
    dtype: str = "auto"
    allow_pickle: bool = False
    revision: str | None = None
    family: str | None = None
    adapter: str | None = None
    sampler: str | None = None

    def __call__(self, name: str) -> Lens:
        from floatlens.lens import load

        options: dict[str, Any] = {"device_map": self.device, "dtype": self.dtype, "allow_pickle": self.allow_pickle}
        return limit_threads(load(name, **self._chosen, **options))

    def find(self, name: str) -> Checkpoint:
        """Find a model without reading its weights."""
        from floatlens.models.checkpoint import find

        return find(name, **self._chosen)

    def recorded(self) -> dict[str, Any]:
        """Return the options that results depend on, for the manifest."""
        given = {name: value for name in ("adapter", "sampler") if (value := getattr(self, name)) is not None}
        return {"dtype": self.dtype, "family": self.family, **given}

    def without_weights(self, name: str) -> Lens:
        """Return the lens of a model with its config and tokenizer only, for planning."""
        from floatlens.lens import Lens

        return Lens(self.find(name))

    @property
    def _chosen(self) -> dict[str, Any]:
        """The options about the model itself that the user chose."""
        names = ("revision", "family", "adapter", "sampler")
        return {name: getattr(self, name) for name in names}


def limit_threads(lens: Lens) -> Lens:
    """Use one thread for a small model on a CPU, where several threads cost more than they save; return the lens."""
    import torch

    if (lens.shape["width"] or SMALL) < SMALL and not lens.options.get("device_map"):
        torch.set_num_threads(1)
    return lens
