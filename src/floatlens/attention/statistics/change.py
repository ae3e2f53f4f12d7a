"""What changes from one step to the next: keys, values and hidden states at each position, and attention.

A causal model computes a key once and keeps it; a bidirectional model computes all keys again at every step, although most
hardly change (arXiv 2510.14973, 2604.12056), so the numbers show what a cache could reuse. Step similarity is how similar a
head's attention is from one step to the next (arXiv 2509.24014); it doubles the cost of the weights.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, ClassVar

import torch

from floatlens.attention.call import Call
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.hidden import HiddenStatistic
from floatlens.attention.statistic import Statistic, register_statistic, variant
from floatlens.attention.stream import Tile, attention_rows


def change_since_last(
    memory: dict[Hashable, Any], key: Hashable, first: int, now_BQC: torch.Tensor, length: int
) -> torch.Tensor:
    """|now − before| / |before| of vectors and those of the previous step (B, length); stores `now_BQC` in their place.

    NaN at a position that was not computed at both steps, and where the earlier vector is zero. `first` is the position of
    the first vector.

    >>> memory = {}
    >>> _ = change_since_last(memory, "keys", 0, torch.tensor([[[3.0, 4.0]]]), 1)
    >>> change_since_last(memory, "keys", 0, torch.tensor([[[3.0, 0.0]]]), 1)
    tensor([[0.8000]])
    """
    now = now_BQC.detach().float()
    change_BT = now.new_full((now.shape[0], length), torch.nan)
    start, before = memory.get(key, (0, now[:, :0]))
    low, high = max(first, start), min(first + now.shape[1], start + before.shape[1])
    if low < high and before.shape[0] == now.shape[0] and before.shape[2] == now.shape[2]:
        a, b = before[:, low - start : high - start], now[:, low - first : high - first]
        size = a.norm(dim=-1)
        change_BT[:, low:high] = torch.where(size > 0, (b - a).norm(dim=-1) / size, torch.nan)
    memory[key] = (first, now.clone())
    return change_BT


class Change(Statistic):
    """|x − x'| / |x'| of the keys or values of each position and those of the previous step.

    The vector of a position combines all key/value heads; keys are compared after RoPE, which rotates both by the same
    angle. NaN if the position was not computed at both steps.
    """

    dims: ClassVar[tuple[str, ...]] = ("position",)
    compares = True
    vectors: ClassVar[str]

    def result(self, call: Call) -> torch.Tensor:
        x_BKTD = getattr(call, self.vectors)
        now_BQC = x_BKTD[:, :, call.query_keys].transpose(1, 2).flatten(2)
        return change_since_last(call.memory, (self.name, call.layer), call.first_query, now_BQC, call.length)

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        """In double precision."""
        out = torch.full((call.B, call.length), torch.nan)
        if m.before is not None:
            spans = [one.query_positions for one in (call, m.before)]
            first, end = max(span.start for span in spans), min(span.stop for span in spans)
            new, old = (
                getattr(one, cls.vectors)[:, :, first - one.first_key : max(first, end) - one.first_key].double()
                for one in (call, m.before)
            )
            out[:, first : max(first, end)] = ((new - old).square().sum((1, 3)) / old.square().sum((1, 3))).sqrt()
        return out.masked_fill(~out.isfinite(), torch.nan)


variant(Change, "key_change", vectors="k_BKTD")
variant(Change, "value_change", vectors="v_BKTD")


@register_statistic
class HiddenChange(Change, HiddenStatistic):
    """The same of the hidden states of the step's rows."""

    name = "hidden_change"
    of_step = True
    vectors = "k_BKTD"


@register_statistic
class StepSimilarity(Statistic):
    """Mean over queries of the overlap of attention: sum over keys of min(now, before), 1 minus the total variation.

    The attention of the previous step is computed again from its queries and keys, tile by tile, so that no matrix is kept.
    Over the queries that were computed at both steps; NaN if there are none, as in a causal model with a cache.
    """

    name = "step_similarity"
    dims = ("head",)
    compares = True

    def start(self, call: Call) -> None:
        key = ("attention", call.layer)
        self.before: Call | None = call.memory.get(key)
        self.sum_BH = torch.zeros(call.B, call.H, device=call.device)
        self.count_B = torch.zeros(call.B, device=call.device)
        if call.starts_over:  # rows that extend a cache are never computed again
            q, k = call.q_BHQD.clone(), call.k_BKTD.clone()
            call.memory[key] = replace(call, q_BHQD=q, k_BKTD=k, v_BKTD=call.v_BKTD[:, :, :0], lse_BHQ=None, memory={})

    def tile(self, tile: Tile) -> None:
        call, before = tile.call, self.before
        if before is None or not call.starts_over or before.B != call.B:
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

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
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
