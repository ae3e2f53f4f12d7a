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
from floatlens.attention.hidden import Hidden, HiddenStatistic
from floatlens.attention.statistic import Statistic, register_statistic
from floatlens.attention.stream import Tile, attention_rows

CHANGE, COSINE = 0, 1


def compare_with_last(
    memory: dict[Hashable, Any], key: Hashable, first: int, now_BQC: torch.Tensor, length: int
) -> torch.Tensor:
    """Relative change and cosine (B, 2, length) of vectors compared with the previous step; stores `now_BQC` in their place.

    The relative change is |now − before| / |before|. NaN at a position that was not computed at both steps, and where a
    vector is zero. `first` is the position of the first vector.

    >>> memory = {}
    >>> _ = compare_with_last(memory, "keys", 0, torch.tensor([[[3.0, 4.0]]]), 1)
    >>> compare_with_last(memory, "keys", 0, torch.tensor([[[3.0, 0.0]]]), 1)
    tensor([[[0.8000],
             [0.6000]]])
    """
    now = now_BQC.detach().float()
    found = now.new_full((now.shape[0], 2, length), torch.nan)
    start, before = memory.get(key, (0, now[:, :0]))
    low, high = max(first, start), min(first + now.shape[1], start + before.shape[1])
    if low < high and before.shape[0] == now.shape[0] and before.shape[2] == now.shape[2]:
        a, b = before[:, low - start : high - start], now[:, low - first : high - first]
        size = a.norm(dim=-1)
        found[:, 0, low:high] = torch.where(size > 0, (b - a).norm(dim=-1) / size, torch.nan)
        product = size * b.norm(dim=-1)
        found[:, 1, low:high] = torch.where(product > 0, (a * b).sum(-1) / product, torch.nan)
    memory[key] = (first, now.clone())
    return found


def key_drift(call: Call) -> torch.Tensor:
    """Relative change and cosine of the keys that the call computed (B, 2, positions)."""
    return _drift(call, "key", call.k_BKTD[:, :, call.query_keys])


def value_drift(call: Call) -> torch.Tensor:
    """Relative change and cosine of the values that the call computed (B, 2, positions)."""
    return _drift(
        call, "value", call.v_BKTD[:, :, call.query_keys] if call.starts_over else call.v_BKTD[:, :, -call.Q :]
    )


def _drift(call: Call, name: str, now_BKQD: torch.Tensor) -> torch.Tensor:
    now_LBQC = now_BKQD.transpose(1, 2).flatten(2).unflatten(0, (len(call.layers), -1))
    parts = [
        compare_with_last(call.memory, (name, layer), call.first_query, now_LBQC[key], call.length)
        for key, layer in enumerate(call.layers)
    ]
    return torch.cat(parts)


class Change(Statistic):
    """Compares the keys or values of each position with those of the previous step.

    The vector of a position combines all key/value heads; keys are compared after RoPE, which rotates both by the same
    angle. NaN if the position was not computed at both steps.
    """

    dims = ("position",)
    by_row, compares = True, True
    number: ClassVar[int] = CHANGE
    vectors: ClassVar[str]

    def result(self, call: Call) -> torch.Tensor:
        return call.once(key_drift if self.vectors == "k_BKTD" else value_drift)[:, self.number]

    @classmethod
    def exact(cls, m: ExactMatrices, call: Call) -> torch.Tensor:
        """Position by position, in double precision."""
        out = torch.full((call.B, call.length), torch.nan)
        if m.before is None:
            return out
        both = range(*m.before.query_positions.indices(m.before.length))
        for position in range(*call.query_positions.indices(call.length)):
            if position not in both:
                continue
            old = getattr(m.before, cls.vectors)[:, :, position - m.before.first_key].double().flatten(1)
            new = getattr(call, cls.vectors)[:, :, position - call.first_key].double().flatten(1)
            if cls.number == CHANGE:
                out[:, position] = ((new - old).square().sum(1) / old.square().sum(1)).sqrt()
            else:
                out[:, position] = (new * old).sum(1) / (new.square().sum(1) * old.square().sum(1)).sqrt()
        return out.masked_fill(~out.isfinite(), torch.nan)


@register_statistic
class KeyChange(Change):
    """|k − k'| / |k'| with the key k' of the previous step."""

    name, vectors = "key_change", "k_BKTD"


@register_statistic
class KeyCosine(Change):
    """Cosine of a key with the key of the previous step."""

    name, vectors, number = "key_cos", "k_BKTD", COSINE


@register_statistic
class ValueChange(Change):
    """|v − v'| / |v'| with the value v' of the previous step."""

    name, vectors = "value_change", "v_BKTD"


@register_statistic
class ValueCosine(Change):
    """Cosine of a value with the value of the previous step."""

    name, vectors, number = "value_cos", "v_BKTD", COSINE


@register_statistic
class HiddenChange(HiddenStatistic):
    """|h − h'| / |h'| with the state h' of the previous step; NaN if the position was not computed at both steps."""

    name = "hidden_change"
    compares = True
    number: ClassVar[int] = CHANGE

    def of(self, hidden: Hidden) -> torch.Tensor:
        key = (self.name, hidden.layer)
        active = hidden.h[:, hidden.active_rows]
        return compare_with_last(hidden.memory, key, hidden.active.start, active, hidden.length)[:, self.number]


@register_statistic
class HiddenCosine(HiddenChange):
    """Cosine of a state with the state of the previous step."""

    name = "hidden_cos"
    number = COSINE


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
        key = ("attention", call.layers)
        self.before: Call | None = call.memory.get(key)
        self.sum_BH = torch.zeros(call.B, call.H, device=call.q_BHQD.device)
        self.count_B = torch.zeros(call.B, device=call.q_BHQD.device)
        if call.starts_over:  # rows that extend a cache are never computed again
            q, k = call.q_BHQD.clone(), call.k_BKTD.clone()
            call.memory[key] = replace(
                call, q_BHQD=q, k_BKTD=k, v_BKTD=call.v_BKTD[:, :, :0], lse_BHQ=None, norm_BKT=None, memory={}
            )

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
