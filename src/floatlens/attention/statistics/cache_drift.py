"""Cache drift: how much the keys and values of each position change from one step to the next.

A causal model computes a key once and keeps it; a bidirectional model computes all keys again at every step, although most
hardly change (arXiv 2510.14973, 2604.12056). The numbers show what a cache could reuse. The vector of a position combines
all key/value heads. Keys are compared after RoPE, which rotates both by the same angle.
"""

from __future__ import annotations

import torch

from floatlens.attention.call import Call
from floatlens.attention.change import compare_with_last
from floatlens.attention.exact import ExactMatrices
from floatlens.attention.registry import register_statistic
from floatlens.attention.statistic import Statistic

CHANGE, COSINE = 0, 1


def key_drift(call: Call) -> torch.Tensor:
    """Relative change and cosine of the keys that the call computed (B, 2, positions)."""
    return _drift(call, "key", call.k_BKTD[:, :, call.query_keys])


def value_drift(call: Call) -> torch.Tensor:
    """Relative change and cosine of the values that the call computed (B, 2, positions)."""
    return _drift(call, "value", call.v_BKTD[:, :, call.query_keys] if call.fresh else call.v_BKTD[:, :, -call.Q :])


def _drift(call: Call, name: str, now_BKQD: torch.Tensor) -> torch.Tensor:
    now_LBQC = now_BKQD.transpose(1, 2).flatten(2).unflatten(0, (len(call.layers), -1))
    parts = [
        compare_with_last(call.memory, (name, layer), call.first_query, now_LBQC[key], call.length)
        for key, layer in enumerate(call.layers)
    ]
    return torch.cat(parts)


class Drift(Statistic):
    """One number per position; NaN if the position was not computed at both this step and the previous one."""

    dims = ("position",)
    tiled, by_row, compares = False, True, True


@register_statistic
class KeyChange(Drift):
    """|k − k'| / |k'| with the key k' of the previous step."""

    name = "key_change"

    def result(self, call: Call) -> torch.Tensor:
        return call.once(key_drift)[:, CHANGE]

    @staticmethod
    def exact(m: ExactMatrices, call: Call) -> torch.Tensor:
        return by_definition(m, call, "k_BKTD", CHANGE)


@register_statistic
class KeyCosine(Drift):
    """Cosine of a key with the key of the previous step."""

    name = "key_cos"

    def result(self, call: Call) -> torch.Tensor:
        return call.once(key_drift)[:, COSINE]

    @staticmethod
    def exact(m: ExactMatrices, call: Call) -> torch.Tensor:
        return by_definition(m, call, "k_BKTD", COSINE)


@register_statistic
class ValueChange(Drift):
    """|v − v'| / |v'| with the value v' of the previous step."""

    name = "value_change"

    def result(self, call: Call) -> torch.Tensor:
        return call.once(value_drift)[:, CHANGE]

    @staticmethod
    def exact(m: ExactMatrices, call: Call) -> torch.Tensor:
        return by_definition(m, call, "v_BKTD", CHANGE)


@register_statistic
class ValueCosine(Drift):
    """Cosine of a value with the value of the previous step."""

    name = "value_cos"

    def result(self, call: Call) -> torch.Tensor:
        return call.once(value_drift)[:, COSINE]

    @staticmethod
    def exact(m: ExactMatrices, call: Call) -> torch.Tensor:
        return by_definition(m, call, "v_BKTD", COSINE)


def by_definition(m: ExactMatrices, call: Call, field: str, number: int) -> torch.Tensor:
    """Position by position, in double precision."""
    out = torch.full((call.B, call.length), torch.nan)
    if m.before is None:
        return out
    both = range(*m.before.query_positions.indices(m.before.length))
    for position in range(*call.query_positions.indices(call.length)):
        if position not in both:
            continue
        old = getattr(m.before, field)[:, :, position - m.before.first_key].double().flatten(1)
        new = getattr(call, field)[:, :, position - call.first_key].double().flatten(1)
        if number == CHANGE:
            out[:, position] = ((new - old).square().sum(1) / old.square().sum(1)).sqrt()
        else:
            out[:, position] = (new * old).sum(1) / (new.square().sum(1) * old.square().sum(1)).sqrt()
    return out.masked_fill(~out.isfinite(), torch.nan)
