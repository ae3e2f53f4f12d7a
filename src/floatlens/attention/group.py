"""Groups of layers with attention calls of the same kind, processed as one call with the rows of all of them.

Most statistics are cheap per layer, so on small models and in cached decoding the number of operations would cost more
than the arithmetic. A group holds queries, keys and values until it is processed; `ROOM` limits their size.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from floatlens.attention.call import Call, unknown
from floatlens.attention.statistic import Statistic
from floatlens.attention.workspace import Workspace

ROOM = 1 << 26  # largest size in bytes of the queries, keys and values in a group; a larger layer is processed alone


def size(call: Call) -> int:
    """Size in bytes of what a call keeps: queries, keys and values, or what was computed of them."""
    vectors = () if call.bare else (call.q_BHQD, call.k_BKTD, call.v_BKTD)
    return sum(x.nbytes for x in (*vectors, *call.kept_rows.values(), *call.shared.values()))


class Group:
    """Waiting calls, the statistics that are taken of all of them, and the keys of a growing cache."""

    def __init__(self, observers: dict[str, Statistic]) -> None:
        self.observers = observers
        self.layers: list[int] = []
        self.size = 0
        self.closed = False  # True: no further layer joins
        self.waiting: dict[int, Call] = {}
        self.store = KeyStore()

    def together(self, space: Workspace) -> Call:
        """Merge the waiting calls into one, in memory of the workspace, and empty the group."""
        calls = [self.waiting[layer] for layer in self.layers if layer in self.waiting]
        self.waiting = {}
        first = calls[0]
        if len({None if call.mask is None else call.mask.data_ptr() for call in calls}) > 1:
            raise RuntimeError(f"layers {self.layers} had the same mask when the sequence began, but differ now")
        if first.bare and len(calls) > 1:
            return self._bare(calls)
        keys, norms = (None, None) if first.fresh else self.store.extended(calls)
        if len(calls) == 1 and keys is None:
            return first
        logs = [call.lse_BHQ for call in calls if call.lse_BHQ is not None]
        joined = replace(
            first,
            layers=tuple(layer for call in calls for layer in call.layers),
            q_BHQD=space.joined("q", [call.q_BHQD for call in calls]),
            k_BKTD=space.joined("k", [call.k_BKTD for call in calls]) if keys is None else keys,
            # Rows that extend a cache come with the values of the new positions only.
            v_BKTD=space.joined("v", [c.v_BKTD if c.fresh else c.v_BKTD[:, :, c.query_keys] for c in calls]),
            layout=first.layout.of_layers(len(calls)),
            lse_BHQ=torch.cat(logs) if len(logs) == len(calls) else None,
            norm_BKT=norms,
        )
        joined.join_shared(calls)
        for name in set.intersection(*(set(call.column_sums) for call in calls)):
            joined.column_sums[name] = torch.cat([call.column_sums[name] for call in calls])
        for start in set.intersection(*(set(call.kept_rows) for call in calls)):
            joined.keep_rows(start, torch.cat([call.kept_rows[start] for call in calls]))
        return joined

    def _bare(self, calls: list[Call]) -> Call:
        """Merge calls whose queries, keys and values were dropped."""
        first, rows = calls[0], sum(call.B for call in calls)
        q, k, v = (unknown((rows, *x.shape[1:]), x.device) for x in (first.q_BHQD, first.k_BKTD, first.v_BKTD))
        layers, layout = tuple(layer for call in calls for layer in call.layers), first.layout.of_layers(len(calls))
        joined = replace(first, layers=layers, q_BHQD=q, k_BKTD=k, v_BKTD=v, layout=layout)
        joined.join_shared(calls)
        return joined


class KeyStore:
    """Keys of several layers in one tensor; each cached step appends its keys, because old keys never change."""

    def __init__(self) -> None:
        self.keys_BKTD = torch.zeros(0)
        self.norm_BKT = torch.zeros(0)
        self.length = 0

    def extended(self, calls: list[Call]) -> tuple[torch.Tensor, torch.Tensor]:
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
