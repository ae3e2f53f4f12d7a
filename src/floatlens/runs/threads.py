"""How many threads a small model gets: one, for several would wait for each other longer than they work."""

from __future__ import annotations

from typing import Any

SMALL = 512  # width below which a layer's products are too small to share


def settle(lens: Any) -> Any:
    """Give a small model on a CPU one thread; returns the lens."""
    import torch

    if (lens.shape["width"] or SMALL) < SMALL and not lens.options.get("device_map"):
        torch.set_num_threads(1)
    return lens
