"""Attention masks as three integers: the number of keys before and after a query that it may see, and a block length.

Under every mask here, the keys that a query may see form one interval, and both of its ends move forward with the query.
A kernel can therefore decide from the integers alone which tiles are fully hidden, fully visible or partly visible, and
needs no mask in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FAR = 1 << 30  # no limit; positions stay below it, so that sums of two fit in 32 bits


@dataclass(frozen=True)
class IntervalMask:
    """Which keys a query may see. Positions are counted in keys: query i is at position `i + offset`.

    A query at position p may see key j if `start <= j`, `p - back <= j <= p + ahead` and j is not in a later block than
    p. Blocks are counted from `start`, the first position of the row that is not padding.

    Parameters
    ----------
    back, ahead : int
        Number of keys before and after the query's own position that it may see.
    block : int
        Block length of block-causal attention: a query sees its own block and all earlier ones.
    offset : int or None
        Position of the first query. None: the queries are the last positions (`T - Q`).

    >>> IntervalMask.causal().dense(queries=2, keys=3)[0].int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    >>> IntervalMask.block_causal(2).dense(queries=4, keys=4)[0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 1],
            [1, 1, 1, 1]], dtype=torch.int32)
    """

    back: int = FAR
    ahead: int = FAR
    block: int = FAR
    offset: int | None = None

    def __post_init__(self) -> None:
        for name, smallest in (("back", 0), ("ahead", 0), ("block", 1)):
            value = getattr(self, name)
            if not smallest <= value <= FAR:
                raise ValueError(f"{name} is {value}; use a number between {smallest} and {FAR}")

    @classmethod
    def full(cls, offset: int | None = None) -> IntervalMask:
        """Every query sees every key."""
        return cls(offset=offset)

    @classmethod
    def causal(cls, offset: int | None = None) -> IntervalMask:
        """A query sees its own position and all earlier ones."""
        return cls(ahead=0, offset=offset)

    @classmethod
    def sliding(cls, window: int, offset: int | None = None) -> IntervalMask:
        """Causal, with `window` keys per query, its own included (the convention of transformers)."""
        return cls(back=window - 1, ahead=0, offset=offset)

    @classmethod
    def block_causal(cls, length: int, offset: int | None = None) -> IntervalMask:
        """A query sees its own block of `length` positions and all earlier blocks."""
        return cls(block=length, offset=offset)

    def first_query(self, queries: int, keys: int) -> int:
        """Position of the first query."""
        return keys - queries if self.offset is None else self.offset

    def dense(self, queries: int, keys: int, start_B: torch.Tensor | None = None) -> torch.Tensor:
        """The dense mask: True where a query may see a key (B, Q, T). Rows of padding are False.

        For tests and for comparison with a mask that a model passes; the kernels never call it.
        """
        start = torch.zeros(1, dtype=torch.int64) if start_B is None else start_B.long()
        start_B11 = start[:, None, None]
        j = torch.arange(keys, device=start.device)[None, None, :]
        p = torch.arange(queries, device=start.device)[None, :, None] + self.first_query(queries, keys)
        same_or_earlier = (j - start_B11).div(self.block, rounding_mode="floor") <= (p - start_B11).div(
            self.block, rounding_mode="floor"
        )
        near = (j >= p - self.back) & (j <= p + self.ahead)
        return near & same_or_earlier & (j >= start_B11) & (p >= start_B11)
