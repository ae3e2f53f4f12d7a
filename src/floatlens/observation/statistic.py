"""What a statistic is: something that looks at attention while it passes, tile by tile, and keeps a small result.

One object per statistic and layer. When the model extends a cache, the same object goes on from step to step, so a sum
over all queries so far is a running sum; `start` is told whether the call begins anew.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from floatlens.observation.call import Call
from floatlens.observation.tile import Tile


class Statistic:
    """Base of all statistics. A subclass names itself and the dims of what it returns, and overrides what it needs.

    dims: any of "head", "kv_head", "position", "query", "key", "dim", "region", "region_to", after step and layer.
    """

    name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]]
    tiled: ClassVar[bool] = True  # False: `tile` is not called
    pooled: ClassVar[bool] = False  # True: `result` needs `call.pooled_BHRT` or `call.spread_BH`
    by_row: ClassVar[bool] = False  # True: rows are independent, so several layers may come as one call
    final: ClassVar[bool] = False  # True: over the rows that are final, not over those of the step

    def start(self, call: Call) -> None:
        """A call begins. `call.fresh` is False when it extends what was seen before."""

    def tile(self, tile: Tile) -> None:
        """A tile of attention weights passes."""

    def result(self, call: Call) -> torch.Tensor:
        """The value after this call: (B, *dims)."""
        raise NotImplementedError


class RunningSum:
    """A sum over queries that grows with the sequence along its last dim.

    >>> total = RunningSum()
    >>> total.add(torch.ones(1, 2)); total.add(torch.ones(1, 3)); total.value
    tensor([[2., 2., 1.]])
    """

    def __init__(self) -> None:
        self.value: torch.Tensor = torch.zeros(0)

    def reset(self) -> None:
        self.value = torch.zeros(0)

    def add(self, part: torch.Tensor, first: int = 0) -> None:
        """Add `part` at positions first.. of the last dim."""
        length = first + part.shape[-1]
        if self.value.numel() == 0 and first == 0:
            self.value = part.clone()
            return
        if self.value.numel() == 0:
            self.value = part.new_zeros((*part.shape[:-1], length))
        elif self.value.shape[-1] < length:
            self.value = torch.nn.functional.pad(self.value, (0, length - self.value.shape[-1]))
        self.value[..., first:length] += part
