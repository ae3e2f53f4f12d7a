"""Sums over the queries that may see a key, without the score matrix.

mean over q of q·k_j is (mean of q)·k_j, so column means of a score need the sum of the queries that may see each key:
one vector for all keys if every query sees the same keys, suffix sums under a causal mask, otherwise a product with the
mask.
"""

from __future__ import annotations

import torch

from floatlens.observation.call import Call
from floatlens.observation.statistic import RunningSum, Statistic
from floatlens.observation.tile import TILE


def visible_sum(call: Call, x_BHQC: torch.Tensor) -> torch.Tensor:
    """Sum of x over the real queries that may see each key: (B, H, T, C), or (B, H, 1, C) if it is the same for all."""
    if call.real_BQ is not None:
        x_BHQC = x_BHQC.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
    if call.implicit is not None:
        return call.implicit.visible_sum(x_BHQC.expand(-1, call.H, -1, -1))
    if call.same_for_all_queries:
        return x_BHQC.sum(2, keepdim=True)
    if call.mask is None:
        return x_BHQC.flip(2).cumsum(2).flip(2)
    total = x_BHQC.new_zeros(call.B, x_BHQC.shape[1], call.T, x_BHQC.shape[-1])
    rows = max(1, TILE // (call.B * call.T))
    for start in range(0, call.Q, rows):
        end = min(call.Q, start + rows)
        visible = call.may_see(start, end)
        assert visible is not None
        heads = 1 if x_BHQC.shape[1] == 1 else visible.shape[1]
        seen = visible[:, :heads].expand(-1, -1, end - start, call.T).to(x_BHQC.dtype).transpose(2, 3)
        layered = x_BHQC[:, :, start:end].unflatten(0, (len(call.layers), -1))
        total += torch.matmul(seen, layered).flatten(0, 1)
    return total


def visible_count(call: Call) -> torch.Tensor:
    """Number of real queries that may see each key (B, H, T); computed once per call."""
    heads = 1 if call.mask is None else call.mask.shape[1]
    ones = torch.ones(call.B, heads, call.Q, 1, device=call.q_BHQD.device)
    count_BHT = visible_sum(call, ones)[..., 0].expand(-1, call.H, call.T)
    keys_BHT = visible_keys(call)
    return count_BHT if keys_BHT is None else count_BHT * keys_BHT


def visible_keys(call: Call) -> torch.Tensor | None:
    """True for the keys that all queries see (B, H or 1, T); None if every query sees every key, or if queries differ."""
    visible = call.may_see(0, 1) if call.same_for_all_queries else None
    if visible is None:
        return None
    return visible.expand(call.B // len(call.layers), -1, 1, call.T)[:, :, 0].repeat(len(call.layers), 1, 1)


class ColumnMean(Statistic):
    """Mean of a product of a query part and a key part over the queries that may see the key."""

    dims = ("head", "position")
    tiled, by_row = False, True

    def __init__(self) -> None:
        self.sum_BHT = RunningSum()
        self.count_BHT = RunningSum()

    def query_sum(self, call: Call) -> torch.Tensor:
        """The query part, summed over the queries that may see each key: (B, H, T or 1, C)."""
        raise NotImplementedError

    def key_part(self, call: Call) -> torch.Tensor:
        """The key part (B, K, T, C)."""
        raise NotImplementedError

    def key_factor(self, call: Call) -> torch.Tensor | None:
        """A factor per key (B, K, T), or None; applied after the product, which is the smaller tensor."""
        return None

    def part(self, call: Call) -> torch.Tensor:
        """The products, summed over the queries of the call that may see each key (B, H, T)."""
        seen_BHTC, y_BKTC = self.query_sum(call), self.key_part(call)
        groups = call.H // call.K
        if seen_BHTC.shape[2] == 1:
            rows = seen_BHTC.view(call.B, call.K, groups, -1)
            part = torch.matmul(rows, y_BKTC.transpose(2, 3)).view(call.B, call.H, call.T)
            keys_BHT = visible_keys(call)
            if keys_BHT is not None:  # keys that no query sees: padding, or outside the window of a single query
                part = part.masked_fill(~keys_BHT, 0.0)
        else:
            grouped = seen_BHTC.view(call.B, call.K, groups, call.T, -1)
            part = torch.einsum("bkgtc,bktc->bkgt", grouped, y_BKTC).reshape(call.B, call.H, call.T)
        factor_BKT = self.key_factor(call)
        if factor_BKT is not None:
            part = (part.view(call.B, call.K, groups, call.T) * factor_BKT[:, :, None]).view(call.B, call.H, call.T)
        return part

    def start(self, call: Call) -> None:
        if call.fresh:
            self.sum_BHT.reset()
            self.count_BHT.reset()
        if self.name in call.column_sums:
            self.sum_BHT.add(call.column_sums[self.name], call.first_key)
            self.count_BHT.add(call.column_sums["count"], call.first_key)
            return
        part = self.part(call)
        self.sum_BHT.add(part, call.first_key)
        self.count_BHT.add(call.once(visible_count), call.first_key)

    def result(self, call: Call) -> torch.Tensor:
        return self.sum_BHT.value / self.count_BHT.value
