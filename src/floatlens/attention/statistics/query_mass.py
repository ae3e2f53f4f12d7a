"""Query mass: the attention of the question's tokens on the gold evidence, per head (after arXiv 2506.09944).

It scores retrieval heads without using the generated text.
"""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic


@register_statistic
class QueryMass(Statistic):
    """Mean over the tokens of region `query` of the attention mass on the gold evidence; NaN without a question."""

    name = "query_mass"
    dims = ("head",)
    tiled, pooled, by_row = False, True, True
    quantities = ()

    def __init__(self) -> None:
        self.sum_BH = torch.zeros(0)
        self.count_B = torch.zeros(0)

    def start(self, call: Call) -> None:
        if call.fresh:
            self.sum_BH = torch.zeros(call.B, call.H, device=call.q_BHQD.device)
            self.count_B = torch.zeros(call.B, device=call.q_BHQD.device)
        index_B = [names.index("query") if "query" in names else -1 for names in call.layout.region_names]
        self.asks = [(row, index) for row, index in enumerate(index_B) if index >= 0]
        for row, index in self.asks:
            self.count_B[row] += call.member_BRQ[row, index].sum()

    def result(self, call: Call) -> torch.Tensor:
        gold_BT = call.layout.gold_BN[:, call.first_key : call.length].float()
        for row, index in self.asks:
            self.sum_BH[row] += call.pooled_BHRT[row, :, index] @ gold_BT[row]
        return self.sum_BH / self.count_B[:, None]
