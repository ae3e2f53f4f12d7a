"""Attention of the writing rows: where the query attends whose logits write the token.

An autoregressive model writes from its newest query, a masked diffusion model from the query at the position that it
commits (or the one before it, in shifted models), so these rows can be compared where the mean over all queries cannot.
Which positions a step commits is known after the forward pass only. All rows that may write are kept until then (those of
the answer, at most a few dozen); the recorder takes the mean over the ones that did.
"""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic
from floatlens.attention.tile import attention_rows, writing_queries


def mean_over_heads(call: Call) -> torch.Tensor:
    """Attention of the rows that may write, mean over heads (B, rows, T)."""
    start, end = writing_queries(call)
    if start == end:
        return torch.zeros(call.B, 0, call.T, device=call.q_BHQD.device)
    return attention_rows(call, start, end).mean(1)


@register_statistic
class ReceivedWriting(Statistic):
    """Attention (mean over heads) of every row that may write, in the order of `Layout.writes_BN`; NaN if not computed.

    A trace holds the mean over the rows that wrote at the step, along `position` alone.
    """

    name = "received_writing"
    dims = ("writer", "position")
    tiled, by_row = False, True
    quantities = (mean_over_heads,)

    def result(self, call: Call) -> torch.Tensor:
        first, end = call.layout.writing_span
        out = torch.full((call.B, end - first, call.length), torch.nan, device=call.q_BHQD.device)
        start, stop = (call.first_query - first + row for row in writing_queries(call))
        if start < stop:
            out[:, start:stop] = 0.0  # a sliding-window cache no longer holds the first keys
            out[:, start:stop, call.first_key :] = call.once(mean_over_heads)
        writes_BQ = call.layout.writes_BN[:, first:end]
        return out.masked_fill_(~writes_BQ[..., None], torch.nan)
