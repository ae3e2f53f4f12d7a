"""Evidence: where the rows that write the answer attend, kept until it is known which of them were committed.

Which positions a step commits is decided after the forward pass, so the mass on the gold evidence and the most attended
key are taken for every row that may write (the answer's, at most a few dozen); `trace` picks the committed ones.
"""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic
from floatlens.attention.tile import attention_rows, writing_queries


def gold_and_top(call: Call) -> torch.Tensor:
    """Mass on the gold evidence and position of the most attended key, of the rows that may write (B, H, rows, 2)."""
    start, end = writing_queries(call)
    if start == end:
        return torch.zeros(call.B, call.H, 0, 2, device=call.q_BHQD.device)
    gold_BT = call.layout.gold_BN[:, call.first_key : call.length].float()
    weights_BHQT = attention_rows(call, start, end)
    mass_BHQ = torch.einsum("bhqt,bt->bhq", weights_BHQT, gold_BT)
    return torch.stack([mass_BHQ, (weights_BHQT.argmax(-1) + call.first_key).float()], -1)


@register_statistic
class Evidence(Statistic):
    """For each query that writes: (mass on the gold evidence, position of the most attended key), NaN elsewhere."""

    name = "evidence"
    dims = ("head", "query", "pair")
    tiled, by_row = False, True
    quantities = (gold_and_top,)

    def result(self, call: Call) -> torch.Tensor:
        start, end = writing_queries(call)
        out = torch.full((call.B, call.H, call.Q, 2), torch.nan, device=call.q_BHQD.device)
        out[:, :, start:end] = call.once(gold_and_top)
        writes_BQ = call.layout.writes_BN[:, call.query_positions]
        return out.masked_fill_(~writes_BQ[:, None, :, None], torch.nan)
