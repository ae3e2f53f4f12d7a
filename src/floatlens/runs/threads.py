"""The number of CPU threads of a small model: one, since several would wait for each other longer than they work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floatlens.lens import Lens

SMALL = 512  # width below which a layer's matrix products are too small to share


def limit_threads(lens: Lens) -> Lens:
    """Use one thread for a small model on a CPU; returns the lens."""
    import torch

    if (lens.shape["width"] or SMALL) < SMALL and not lens.options.get("device_map"):
        torch.set_num_threads(1)
    return lens
