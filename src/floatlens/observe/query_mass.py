"""Query mass: the attention of the question's tokens on the gold evidence, per head (after arXiv 2506.09944).

It scores retrieval heads without looking at what is generated.
"""

from __future__ import annotations

import torch

from floatlens.observe.call import Call
from floatlens.observe.statistic import Statistic
from floatlens.observe.tile import Tile


class QueryMass(Statistic):
    """Mean over the tokens of region `query` of the attention mass on the gold evidence; NaN without a question."""

    name = "query_mass"
    dims = ("head",)

    def __init__(self) -> None:
        self.sum_BH = torch.zeros(0)
        self.count_B = torch.zeros(0)

    def start(self, call: Call) -> None:
        if call.fresh:
            self.sum_BH = torch.zeros(call.B, call.H, device=call.q_BHQD.device)
            self.count_B = torch.zeros(call.B, device=call.q_BHQD.device)
        self.index_B = [names.index("query") if "query" in names else -1 for names in call.layout.region_names]
        for row, index in enumerate(self.index_B):
            self.count_B[row] += call.member_BRQ[row, index].sum() if index >= 0 else 0.0

    def tile(self, tile: Tile) -> None:
        first = tile.call.first_key
        gold_BT = tile.call.layout.gold_BN[:, first : first + tile.T].float()
        for row, index in enumerate(self.index_B):
            if index >= 0:
                self.sum_BH[row] += tile.pooled_BHRT[row, :, index] @ gold_BT[row]

    def result(self, call: Call) -> torch.Tensor:
        return self.sum_BH / self.count_B[:, None]
