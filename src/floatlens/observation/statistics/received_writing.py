"""Attention of the writing rows: where the query attends whose logits write the token.

An autoregressive model writes from its newest query, a masked diffusion model from the query at the position that it
commits (or the one before it, in shifted models), so these rows can be compared where the mean over all queries cannot.
Which positions a step commits is known after the forward pass only. All rows that may write are kept until then (those of
the answer, at most a few dozen); the recorder takes the mean over the ones that did.
"""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.registry import register_statistic
from floatlens.observation.statistic import Statistic
from floatlens.observation.tile import attention_rows


@register_statistic
class ReceivedWriting(Statistic):
    """Attention (mean over heads) of every row that may write, in the order of `Layout.writes_BN`; NaN if not computed.

    A trace holds the mean over the rows that wrote at the step, along `position` alone.
    """

    name = "received_writing"
    dims = ("writer", "position")
    tiled, by_row = False, True

    def result(self, call: Call) -> torch.Tensor:
        first, end = call.layout.writing_span
        out = torch.full((call.B, end - first, call.length), torch.nan, device=call.q_BHQD.device)
        start, stop = max(first, call.first_query), min(end, call.length)
        if start < stop:
            rows = (start - call.first_query, stop - call.first_query)
            weights = attention_rows(call, *rows).mean(1)
            out[:, start - first : stop - first] = 0.0  # a sliding-window cache no longer holds the first keys
            out[:, start - first : stop - first, call.first_key :] = weights
        writes_BQ = call.layout.writes_BN[:, first:end]
        return out.masked_fill(~writes_BQ[..., None], torch.nan)
