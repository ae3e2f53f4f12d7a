"""Evidence: where the rows that write the answer attend, kept until it is known which of them were committed.

Which positions a step commits is decided after the forward pass, so the mass on the gold evidence and the most attended
key are taken for every row that may write (the answer's, at most a few dozen); `trace` picks the committed ones.
"""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.registry import register_statistic
from floatlens.observation.statistic import Statistic
from floatlens.observation.tile import attention_rows


@register_statistic
class Evidence(Statistic):
    """For each query that writes: (mass on the gold evidence, position of the most attended key), NaN elsewhere."""

    name = "evidence"
    dims = ("head", "query", "pair")
    tiled, by_row = False, True

    def result(self, call: Call) -> torch.Tensor:
        writes_BQ = call.layout.writes_BN[:, call.query_positions]
        gold_BT = call.layout.gold_BN[:, call.first_key : call.length].float()
        out = torch.full((call.B, call.H, call.Q, 2), torch.nan, device=call.q_BHQD.device)
        positions = writes_BQ.any(0).nonzero()[:, 0].tolist()
        if not positions:
            return out
        # The writing rows are neighbours (the answer is one span), so one small block of rows serves them all.
        start, end = positions[0], positions[-1] + 1
        weights = attention_rows(call, start, end)
        out[:, :, start:end, 0] = torch.einsum("bhqt,bt->bhq", weights, gold_BT)
        out[:, :, start:end, 1] = (weights.argmax(-1) + call.first_key).float()
        return out.masked_fill(~writes_BQ[:, None, :, None], torch.nan)
