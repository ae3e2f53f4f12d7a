"""Received attention: the mean over queries of the attention that each position gets, and how widely rows spread it."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, register_statistic, variant
from floatlens.attention.stream import attention_rows


@register_statistic
class Received(Statistic):
    """Column mean of attention, over the queries of the step: sums to 1 over the positions."""

    name = "received"
    dims = ("head", "position")
    pooled = True
    quantities = ()

    def result(self, call: Call) -> torch.Tensor:
        queries_B = self.running(call, call.queries_B, name="queries")
        return self.running(call, call.pooled_BHRT.sum(2), call.first_key) / queries_B[:, None, None]

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        rows = m.real_rows(call)
        return torch.where(rows > 0, m.weights_BHQT, 0.0).sum(2) / rows.sum(2)


# Over all rows that will not be computed again: the prompt and finished blocks of a block model. A model without such rows
# has no value here; for an autoregressive model it would be `received` itself.
variant(Received, "received_final", final=True)


def mean_over_heads(call: Call) -> torch.Tensor:
    """Attention of the rows that may write, mean over heads (B, rows, T)."""
    start, end = call.writing_queries
    if start == end:
        return torch.zeros(call.B, 0, call.T, device=call.device)
    return attention_rows(call, start, end).mean(1)


@register_statistic
class ReceivedWriting(Statistic):
    """Attention (mean over heads) of every row that may write, in the order of `Layout.writes_BN`; NaN if not computed.

    An autoregressive model writes from its newest query, a masked diffusion model from the query at the position that it
    commits (or the one before it, in shifted models), so these rows can be compared where the mean over all queries
    cannot. Which positions a step commits is known after the forward pass only, so all rows that may write are kept until
    then; a trace holds the mean over those that wrote at the step, along `position` alone.
    """

    name = "received_writing"
    dims = ("writer", "position")
    quantities = (mean_over_heads,)

    def result(self, call: Call) -> torch.Tensor:
        first, end = call.layout.writing_span
        out = torch.full((call.B, end - first, call.length), torch.nan, device=call.device)
        start, stop = (call.first_query - first + row for row in call.writing_queries)
        if start < stop:
            out[:, start:stop] = 0.0  # a sliding-window cache no longer holds the first keys
            out[:, start:stop, call.first_key :] = call.once(mean_over_heads)
        writes_BQ = call.layout.writes_BN[:, first:end]
        return out.masked_fill_(~writes_BQ[..., None], torch.nan)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        rows = call.layout.writes_BN.any(0).nonzero()[:, 0].tolist()
        out = torch.full((call.B, rows[-1] + 1 - rows[0] if rows else 0, call.length), torch.nan)
        for b, q in call.layout.writes_BN.nonzero().tolist():
            if call.first_query <= q < call.length:
                out[b, q - rows[0]] = m.weights_BHQT[b, :, q].mean(0)
        return out


@register_statistic
class Entropy(Statistic):
    """Mean over queries of -sum_k p log p, in nats; with a learned sink, given that a position is attended."""

    name = "entropy"
    dims = ("head",)
    pooled = True
    quantities = ()

    def result(self, call: Call) -> torch.Tensor:
        return self.running(call, call.spread_BH) / self.running(call, call.queries_B, name="queries")[:, None]

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        rows = m.real_rows(call)
        weights = torch.where(rows > 0, m.weights_BHQT, 0.0)
        if call.sinks_H is not None:
            weights = torch.where(rows > 0, weights / weights.sum(-1, keepdim=True), 0.0)
        return torch.special.entr(weights).sum((-1, -2)) / rows.sum((-1, -2))
