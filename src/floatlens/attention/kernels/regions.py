"""Regions of the queries, and which tiles of queries lie inside a single region, as most tiles of a long text do.

The weights of such a tile are summed directly; only the other tiles need a mask per query.
"""

from __future__ import annotations

import torch

MOST = 64  # the sums per region are held in registers


class Regions:
    """Region index of each query of a batch. Make it once per step: all layers share it.

    Parameters
    ----------
    region_BQ : Tensor
        Region index of each query (int), below `count`; a query with a negative index belongs to none.
    count : int
        Number of regions R, at most 64.
    """

    def __init__(self, region_BQ: torch.Tensor, count: int) -> None:
        if not 1 <= count <= MOST:
            raise ValueError(f"there are {count} regions; the kernel takes 1 to {MOST}, use the stream path")
        self.region_BQ = region_BQ.to(torch.int32).contiguous()
        self.count = count
        self._tiles: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def one(cls, rows: int, queries: int, device: torch.device) -> Regions:
        """All queries in region 0."""
        return cls(torch.zeros(rows, queries, dtype=torch.int32, device=device), 1)

    def tiles(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Order the tiles of `size` queries, those inside one region first: order (B, tiles) and rank (B, tiles + 1).

        Both kinds keep their order. `rank[b, t]` is the number of tiles before t that lie inside one region.

        >>> order, rank = Regions(torch.tensor([[0, 0, 0, 1, 1, 1]]), 2).tiles(2)
        >>> order.tolist(), rank.tolist()
        ([[0, 2, 1]], [[0, 1, 1, 2]])
        """
        if size not in self._tiles:
            B, Q = self.region_BQ.shape
            padded = torch.nn.functional.pad(self.region_BQ, (0, -Q % size), value=-1).view(B, -1, size)
            mixed = (padded != padded[..., :1]).any(-1)
            rank = torch.nn.functional.pad((~mixed).cumsum(1), (1, 0))
            self._tiles[size] = mixed.int().argsort(dim=1, stable=True).int(), rank.int()
        return self._tiles[size]
