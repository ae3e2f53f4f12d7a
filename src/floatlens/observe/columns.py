"""Sums over the queries that may see a key, without the score matrix.

mean over q of q·k_j is (mean of q)·k_j, so column means of a score need the sum of the queries that may see each key:
one vector for all keys when every query sees the same, suffix sums under a causal mask, a product with the mask else.
"""

from __future__ import annotations

import torch

from floatlens.observe.call import Call
from floatlens.observe.statistic import Running, Statistic
from floatlens.observe.tile import TILE


def visible_sum(call: Call, x_BHQC: torch.Tensor) -> torch.Tensor:
    """Sum of x over the real queries that may see each key: (B, H, T, C), or (B, H, 1, C) when it is the same for all."""
    if call.real_BQ is not None:
        x_BHQC = x_BHQC.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
    if call.same_for_all_queries:
        return x_BHQC.sum(2, keepdim=True)
    if call.mask is None:
        return x_BHQC.flip(2).cumsum(2).flip(2)
    total = x_BHQC.new_zeros(call.B, call.H, call.T, x_BHQC.shape[-1])
    rows = max(1, TILE // (call.B * call.T))
    for start in range(0, call.Q, rows):
        end = min(call.Q, start + rows)
        visible = call.may_see(start, end)
        assert visible is not None
        seen = visible.expand(call.B, -1, end - start, call.T).to(x_BHQC.dtype).transpose(2, 3)
        total += torch.matmul(seen, x_BHQC[:, :, start:end])
    return total


class ColumnMean(Statistic):
    """Mean of a product of a query part and a key part over the queries that may see the key."""

    dims = ("head", "position")
    tiled = False

    def __init__(self) -> None:
        self.sum_BHT = Running()
        self.count_BT = Running()

    def parts(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """The query part (B, H, Q, C) and the key part (B, K, T, C) whose product is the score."""
        raise NotImplementedError

    def start(self, call: Call) -> None:
        if call.fresh:
            self.sum_BHT.reset()
            self.count_BT.reset()
        x_BHQC, y_BKTC = self.parts(call)
        seen_BHTC = visible_sum(call, x_BHQC)
        groups = call.H // call.K
        if seen_BHTC.shape[2] == 1:
            rows = seen_BHTC.view(call.B, call.K, groups, -1)
            part = torch.matmul(rows, y_BKTC.transpose(2, 3)).view(call.B, call.H, call.T)
        else:
            grouped = seen_BHTC.view(call.B, call.K, groups, call.T, -1)
            part = torch.einsum("bkgtc,bktc->bkgt", grouped, y_BKTC).reshape(call.B, call.H, call.T)
        self.sum_BHT.add(part, call.first_key)
        self.count_BT.add(self._count(call), call.first_key)

    def _count(self, call: Call) -> torch.Tensor:
        ones = torch.ones(call.B, 1, call.Q, 1, device=call.q_BHQD.device)
        if call.same_for_all_queries or call.mask is None:
            one_head = ones if call.real_BQ is None else ones.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
            if call.same_for_all_queries:
                count = one_head.sum(2)[:, :, 0].expand(-1, call.T)
                visible = call.may_see(0, 1)
                if visible is None:
                    return count.contiguous()
                return count * visible.expand(call.B, -1, 1, call.T)[:, 0, 0].float()
            return one_head.flip(2).cumsum(2).flip(2)[:, 0, :, 0]
        total = torch.zeros(call.B, call.T, device=call.q_BHQD.device)
        rows = max(1, TILE // (call.B * call.T))
        for start in range(0, call.Q, rows):
            end = min(call.Q, start + rows)
            visible = call.may_see(start, end)
            assert visible is not None
            seen = visible.expand(call.B, -1, end - start, call.T)[:, 0].float()
            if call.real_BQ is not None:
                seen = seen * call.real_BQ[:, start:end, None]
            total += seen.sum(1)
        return total

    def result(self, call: Call) -> torch.Tensor:
        return self.sum_BHT.value / self.count_BT.value[:, None]
