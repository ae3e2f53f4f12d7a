"""Random numbers for samplers: one generator per row, so that a row draws the same numbers in any batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

CHUNK = 1 << 22


class Draws:
    """Seeded draws on the CPU, then moved to the device: the same numbers on every device.

    >>> a, b = Draws([7]).uniform(0, (2,)), Draws([1, 7]).uniform(1, (2,))
    >>> bool((a == b).all())
    True
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def uniform(self, row: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Uniform numbers in [0, 1) for one row."""
        return torch.rand(shape, dtype=dtype, generator=self.generators[row])

    def integers(self, row: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Integers from 0 to `high` (exclusive) for one row."""
        return torch.randint(high, shape, generator=self.generators[row])

    def skip(self, row: int, count: int, dtype: torch.dtype = torch.float32) -> None:
        """Draw and discard `count` numbers: the published samplers also draw for the prompt."""
        while count > 0:
            torch.rand(min(count, CHUNK), dtype=dtype, generator=self.generators[row])
            count -= CHUNK

    def choose(self, row: int, weights_NV: torch.Tensor, count: int = 1, replacement: bool = True) -> torch.Tensor:
        """Indices (N, count) drawn by weight; weights (V,) give (count,)."""
        return torch.multinomial(weights_NV.cpu(), count, replacement, generator=self.generators[row])
