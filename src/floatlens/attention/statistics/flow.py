"""Region flow: how much attention goes from each region of the text to each other."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import RunningSum, Statistic


@register_statistic
class Flow(Statistic):
    """Attention from region to region, mean over heads, rows normalised over regions.

    Index 0 is "other": positions of the chat template that belong to no region. An empty region's row is 0.
    """

    name = "flow"
    dims = ("region", "region_to")
    tiled, pooled, by_row = False, True, True
    quantities = ()

    def __init__(self) -> None:
        self.pooled_BRT = RunningSum()

    def start(self, call: Call) -> None:
        if call.fresh:
            self.pooled_BRT.reset()

    def result(self, call: Call) -> torch.Tensor:
        self.pooled_BRT.add(call.pooled_BHRT.mean(1), call.first_key)
        member_BRT = call.layout.member_BRN[:, :, : call.length]
        flow_BRR = torch.matmul(self.pooled_BRT.value, member_BRT.transpose(1, 2))
        return flow_BRR / flow_BRR.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
