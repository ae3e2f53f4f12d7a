"""Buffers that tiles share: allocated once, overwritten by the next tile.

Allocating a megabyte per tile would cost more than the arithmetic on it, because its pages are mapped and cleared each time.
"""

from __future__ import annotations

import math

import torch


class Workspace:
    """Named buffers that grow to the largest tile and are then reused.

    >>> space = Workspace()
    >>> a = space.take("scores", (2, 3), torch.device("cpu")); b = space.take("scores", (3, 2), torch.device("cpu"))
    >>> a.data_ptr() == b.data_ptr()
    True
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.device], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        """A float32 tensor of the given shape with arbitrary content."""
        size = math.prod(shape)
        buffer = self.buffers.get((name, device))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, device=device)
            self.buffers[name, device] = buffer
        return buffer[:size].view(shape)

    def joined(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        """Tensors of one shape, concatenated along the first dim in float32; a single one is returned unchanged."""
        if len(parts) == 1:
            return parts[0]
        whole = self.take(name, (len(parts) * parts[0].shape[0], *parts[0].shape[1:]), parts[0].device)
        if all(part.dtype == torch.float32 for part in parts):
            return torch.cat(parts, out=whole)
        for place, part in zip(whole.split(parts[0].shape[0]), parts, strict=True):
            place.copy_(part)
        return whole
