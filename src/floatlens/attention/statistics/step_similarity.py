"""Step similarity: how similar a head's attention is from one step to the next (arXiv 2509.24014).

The attention of the previous step is computed again from its queries and keys, tile by tile, so that no matrix is kept.
This doubles the cost of the weights, so it is only recorded on request.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic
from floatlens.attention.tile import Tile, attention_rows


@register_statistic
class StepSimilarity(Statistic):
    """Mean over queries of the overlap of attention: sum over keys of min(now, before), 1 minus the total variation.

    Over the queries that were computed at both steps; NaN if there are none, as in a causal model with a cache.
    """

    name = "step_similarity"
    dims = ("head",)
    compares = True

    def start(self, call: Call) -> None:
        key = ("attention", call.layers)
        self.before: Call | None = call.memory.get(key)
        self.sum_BH = torch.zeros(call.B, call.H, device=call.q_BHQD.device)
        self.count_B = torch.zeros(call.B, device=call.q_BHQD.device)
        if call.fresh:  # rows that extend a cache are never computed again
            q, k = call.q_BHQD.clone(), call.k_BKTD.clone()
            call.memory[key] = replace(
                call, q_BHQD=q, k_BKTD=k, v_BKTD=call.v_BKTD[:, :, :0], lse_BHQ=None, norm_BKT=None, memory={}
            )

    def tile(self, tile: Tile) -> None:
        call, before = tile.call, self.before
        if before is None or not call.fresh or before.B != call.B:
            return
        first, old = call.first_query, before.first_query
        low, high = max(first + tile.start, old), min(first + tile.end, old + before.Q)
        if low >= high:
            return
        now = tile.weights_BHQT[:, :, low - first - tile.start : high - first - tile.start]
        then = attention_rows(before, low - old, high - old)
        # The keys of both steps at the same positions.
        key = max(call.first_key, before.first_key)
        now, then = now[..., key - call.first_key :], then[..., key - before.first_key :]
        keys = min(now.shape[-1], then.shape[-1])
        self.sum_BH += torch.minimum(now[..., :keys], then[..., :keys]).sum((-1, -2))
        real = call.real_BQ
        self.count_B += float(high - low) if real is None else real[:, low - first : high - first].sum(1)

    def result(self, call: Call) -> torch.Tensor:
        return self.sum_BH / self.count_B[:, None]

    @staticmethod
    def exact(m: ExactMatrices, call: Call) -> torch.Tensor:
        out = torch.full((call.B, call.H), torch.nan)
        if m.before is None:
            return out
        both = set(range(call.length)[call.query_positions]) & set(range(m.before.length)[m.before.query_positions])
        real = call.layout.real_BN
        keys = min(call.length, m.before.length)
        for row in range(call.B):
            rows = [q for q in sorted(both) if real is None or bool(real[row, q])]
            if rows:
                now, then = (x[row][:, rows, :keys].double() for x in (m.weights_BHQT, m.weights_before_BHQT))
                out[row] = (1 - (now - then).abs().sum(-1) / 2 - (2 - now.sum(-1) - then.sum(-1)) / 2).mean(-1)
        return out
