"""The statistics `flow` (attention from region to region), `evidence` and `query_mass` (attention on the gold documents from
the rows that write the answer, and from the question)."""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.statistic import Statistic, register_statistic
from floatlens.attention.stream import attention_rows


@register_statistic
class Flow(Statistic):
    """Attention from region to region, mean over heads, rows normalised over regions.

    Index 0 is "other": positions of the chat template that belong to no region. An empty region's row is 0.
    """

    name = "flow"
    dims = ("region", "region_to")
    pooled = True
    quantities = ()

    def result(self, call: Call) -> torch.Tensor:
        pooled_BRT = self.running(call, call.pooled_BHRT.mean(1), call.first_key)
        member_BRT = call.layout.member_BRN[:, :, : call.length]
        flow_BRR = torch.matmul(pooled_BRT, member_BRT.transpose(1, 2))
        return flow_BRR / flow_BRR.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        regions = torch.arange(max(len(names) for names in call.layout.region_names))
        inside_BNR = (call.layout.region_BN[:, : call.length, None] == regions).float()
        flow = torch.einsum("bqr,bhqk,bks->brs", inside_BNR, m.weights_BHQT, inside_BNR)
        total = flow.sum(-1, keepdim=True)
        return torch.where(total > 0, flow / total, 0.0)


def gold_and_top(call: Call) -> torch.Tensor:
    """Mass on the gold evidence and position of the most attended key, of the rows that may write (B, H, rows, 2)."""
    start, end = call.writing_queries
    if start == end:
        return torch.zeros(call.B, call.H, 0, 2, device=call.device)
    gold_BT = call.layout.gold_BN[:, call.first_key : call.length].float()
    weights_BHQT = attention_rows(call, start, end)
    mass_BHQ = torch.einsum("bhqt,bt->bhq", weights_BHQT, gold_BT)
    return torch.stack([mass_BHQ, (weights_BHQT.argmax(-1) + call.first_key).float()], -1)


@register_statistic
class Evidence(Statistic):
    """For each query that may write: (mass on the gold evidence, position of the most attended key), NaN elsewhere.

    Which of them a step commits is decided after the forward pass; the recorder picks them.
    """

    name = "evidence"
    dims = ("head", "query", "pair")
    quantities = (gold_and_top,)

    def result(self, call: Call) -> torch.Tensor:
        start, end = call.writing_queries
        out = torch.full((call.B, call.H, call.Q, 2), torch.nan, device=call.device)
        out[:, :, start:end] = call.once(gold_and_top)
        writes_BQ = call.layout.writes_BN[:, call.query_positions]
        return out.masked_fill_(~writes_BQ[:, None, :, None], torch.nan)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        weights = m.weights_BHQT[:, :, call.query_positions]
        gold = call.layout.gold_BN[:, None, None, : call.length]
        mass = torch.where(gold, weights, 0.0).sum(-1)
        pair = torch.stack([mass, weights.argmax(-1).float()], -1)
        writes = call.layout.writes_BN[:, None, call.query_positions, None]
        return torch.where(writes, pair, torch.nan)


@register_statistic
class QueryMass(Statistic):
    """Mean over the tokens of region `query` of the attention mass on the gold evidence; NaN without a question.

    It scores retrieval heads without using the generated text (after arXiv 2506.09944).
    """

    name = "query_mass"
    dims = ("head",)
    pooled = True
    quantities = ()

    def result(self, call: Call) -> torch.Tensor:
        asks_BR, gold_BT = call.layout.asks_BR, call.layout.gold_BN[:, call.first_key : call.length].float()
        mass_BH = ((call.pooled_BHRT @ gold_BT[:, None, :, None])[..., 0] * asks_BR[:, None]).sum(-1)
        queries_B = self.running(call, (call.member_BRQ.sum(-1) * asks_BR).sum(-1), name="queries")
        return self.running(call, mass_BH) / queries_B[:, None]

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        out = torch.full((call.B, call.H), torch.nan)
        for row, names in enumerate(call.layout.region_names):
            asks = call.layout.region_BN[row, : call.length] == (names.index("query") if "query" in names else -2)
            asks = asks & m.seen_Q
            if asks.any():
                on_gold = m.weights_BHQT[row][:, asks][:, :, call.layout.gold_BN[row, : call.length]]
                out[row] = on_gold.sum(-1).mean(-1)
        return out
