"""Groups of layers with attention calls of the same kind, processed as one call with the rows of all of them.

Most statistics are cheap per layer, so on small models and in cached decoding the number of operations would cost more
than the arithmetic. A group holds queries, keys and values until it is processed; `ROOM` limits their size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from floatlens.attention.call import Call, unknown
from floatlens.attention.statistic import Statistic
from floatlens.attention.stream import Workspace

ROOM = 1 << 26  # largest size in bytes of the queries, keys and values in a group; a larger layer is processed alone


def size(call: Call) -> int:
    """Size in bytes of what a call keeps: queries, keys and values, or what was computed of them."""
    vectors = (call.q_BHQD, call.k_BKTD, call.v_BKTD) if call.has_vectors else ()
    return sum(x.nbytes for x in (*vectors, *call.computed.values()))


class Group:
    """Waiting calls, the statistics that are taken of all of them, and the keys of a growing cache."""

    def __init__(self, observers: dict[str, Statistic]) -> None:
        self.observers = observers
        self.layers: list[int] = []
        self.size = 0
        self.closed = False  # True: no further layer joins
        self.waiting: dict[int, Call] = {}
        # Keys of a growing cache, of all layers in one tensor; each step appends its own, because old keys never change.
        self.keys_BKTD = self.norm_BKT = torch.zeros(0)
        self.length = 0

    def join(self, space: Workspace) -> Call:
        """Merge the waiting calls into one, in memory of the workspace, and empty the group."""
        calls = [self.waiting[layer] for layer in self.layers if layer in self.waiting]
        self.waiting = {}
        first = calls[0]
        if len({None if call.mask is None else call.mask.data_ptr() for call in calls}) > 1:
            raise RuntimeError(f"layers {self.layers} had the same mask when the sequence began, but differ now")
        if len(calls) == 1 and (first.starts_over or not first.has_vectors):
            return first
        fields = self._vectors(calls, space) if first.has_vectors else self._unknown(calls)
        layers = tuple(layer for call in calls for layer in call.layers)
        joined = replace(first, layers=layers, layout=first.layout.of_layers(len(calls)), **fields)
        joined.join_computed(calls)
        return joined

    def _vectors(self, calls: list[Call], space: Workspace) -> dict[str, Any]:
        """The queries, keys and values of all calls."""
        starts_over = calls[0].starts_over
        keys, norms = (None, None) if starts_over else self._append_keys(calls)
        logs = [call.lse_BHQ for call in calls if call.lse_BHQ is not None]
        return {
            "q_BHQD": space.joined("q", [call.q_BHQD for call in calls]),
            "k_BKTD": space.joined("k", [call.k_BKTD for call in calls]) if keys is None else keys,
            # Rows that extend a cache come with the values of the new positions only.
            "v_BKTD": space.joined("v", [c.v_BKTD if starts_over else c.v_BKTD[:, :, c.query_keys] for c in calls]),
            "lse_BHQ": torch.cat(logs) if len(logs) == len(calls) else None,
            "norm_BKT": norms,
        }

    def _unknown(self, calls: list[Call]) -> dict[str, Any]:
        """The shapes of queries, keys and values that were dropped."""
        rows = sum(call.B for call in calls)
        names = ("q_BHQD", "k_BKTD", "v_BKTD")
        parts = {name: getattr(calls[0], name) for name in names}
        return {name: unknown((rows, *part.shape[1:]), part.device) for name, part in parts.items()}

    def _append_keys(self, calls: list[Call]) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new keys of the calls; return all keys (B, K, T, D) and their norms, in the order of the calls."""
        T, new = calls[0].T, calls[0].Q
        if self.length + new != T or calls[0].first_key > 0 or self.keys_BKTD.shape[0] != len(calls) * calls[0].B:
            new = T  # the first step of a cache, or a sliding window that moved
        if self.keys_BKTD.numel() == 0 or self.keys_BKTD.shape[2] < T:
            rows, (K, D) = len(calls) * calls[0].B, calls[0].k_BKTD.shape[1::2]
            keys = calls[0].k_BKTD.new_empty(rows, K, T + max(64, T // 4), D, dtype=torch.float32)
            norm = keys.new_empty(keys.shape[:3])
            if new < T:
                keys[:, :, : T - new] = self.keys_BKTD[:, :, : T - new]
                norm[:, :, : T - new] = self.norm_BKT[:, :, : T - new]
            self.keys_BKTD, self.norm_BKT = keys, norm
        added = torch.cat([call.k_BKTD[:, :, T - new :] for call in calls]).float()
        self.keys_BKTD[:, :, T - new : T] = added
        self.norm_BKT[:, :, T - new : T] = added.norm(dim=-1)
        self.length = T
        return self.keys_BKTD[:, :, :T], self.norm_BKT[:, :, :T]
