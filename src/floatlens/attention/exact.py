"""The reference implementation: the full matrices of a layer, in float32, from which `Statistic.exact` takes its values.

It shares no arithmetic with the tiles: keys are repeated for GQA, masks are dense, and means are taken over full matrices.
Memory grows with the square of the length. Use it in tests and to check a surprising result.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from floatlens.attention.call import Call


class ExactMatrices:
    """The matrices of one layer over all queries so far: rows are appended when the model extends a cache."""

    def __init__(self) -> None:
        self.weights_BHQT = self.score_BHQT = self.norm_BHQT = self.cos_BHQT = torch.zeros(0)
        self.visible_BHQT = torch.zeros(0, dtype=torch.bool)
        self.value_BKT = torch.zeros(0)
        self.seen_Q = torch.zeros(0, dtype=torch.bool)
        self.call: Call | None = None
        self.before: Call | None = None  # the call of the previous step, and its weights
        self.weights_before_BHQT = torch.zeros(0)

    def see(self, call: Call) -> None:
        groups = call.H // call.K
        q = call.q_BHQD.float()
        k = call.k_BKTD.float().repeat_interleave(groups, dim=1)
        score = q @ k.transpose(2, 3)
        norm = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]
        cos = torch.where(norm > 0, score / norm, torch.zeros_like(score))
        weights, visible = softmax(call, score * call.scale)
        if call.real_BQ is not None:
            weights = weights.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
        before, weights_before = self.call, self.weights_BHQT
        if call.starts_over:
            self.__init__()  # type: ignore[misc]
        self.before, self.weights_before_BHQT = before, weights_before
        self.call = replace(call, k_BKTD=call.k_BKTD.clone(), v_BKTD=call.v_BKTD.clone())
        seen_Q = torch.zeros(call.length, dtype=torch.bool, device=q.device)
        seen_Q[: len(self.seen_Q)] = self.seen_Q
        seen_Q[call.query_positions] = True
        self.seen_Q = seen_Q
        for name, rows in (("weights", weights), ("score", score), ("norm", norm), ("cos", cos), ("visible", visible)):
            self._append(f"{name}_BHQT", rows, call)
        value = call.v_BKTD.float().norm(dim=-1)
        if call.starts_over:
            self.value_BKT = torch.nn.functional.pad(value, (call.first_key, 0))
        else:
            self.value_BKT = torch.cat([self.value_BKT, value[..., call.query_keys]], -1)

    def real_rows(self, call: Call) -> torch.Tensor:
        """1.0 for queries that were computed and are not padding, over all positions so far (B, 1, Q, 1)."""
        real = call.layout.real_BN
        rows = torch.ones(call.B, call.length) if real is None else real[:, : call.length].float()
        return (rows.to(call.device) * self.seen_Q)[:, None, :, None]

    def column_mean(self, matrix_BHQT: torch.Tensor, call: Call) -> torch.Tensor:
        """Mean of a matrix over the queries that may see each key (B, H, T)."""
        seen = self.visible_BHQT & (self.real_rows(call) > 0)
        return torch.where(seen, matrix_BHQT, 0.0).sum(2) / seen.sum(2)

    def _append(self, name: str, rows: torch.Tensor, call: Call) -> None:
        before = getattr(self, name)
        whole = rows.new_zeros(call.B, call.H, call.length, call.length)
        if before.numel():
            whole[:, :, : before.shape[2], : before.shape[3]] = before
        whole[:, :, call.query_positions, call.first_key :] = rows
        setattr(self, name, whole)


def softmax(call: Call, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of a call with these scaled scores, and the keys that its queries may see, both (B, H, Q, T)."""
    visible = torch.ones_like(logits, dtype=torch.bool)
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    if call.bias is not None:
        logits = logits + call.bias.float()
    if call.mask is not None:
        allowed = call.mask if call.mask.dtype == torch.bool else call.mask > torch.finfo(call.mask.dtype).min / 2
        visible &= allowed
        if call.mask.dtype != torch.bool:
            logits = logits + call.mask.float()
    if call.causal:
        visible &= torch.ones_like(visible).tril()
    if call.own_rows is not None:
        return call.own_rows(0, call.Q), visible
    logits = logits.masked_fill(~visible, -torch.inf)
    if call.sinks_H is None:
        return logits.softmax(-1), visible
    sink = call.sinks_H.float()[None, :, None, None].expand(call.B, -1, call.Q, 1)
    return torch.cat([logits, sink], -1).softmax(-1)[..., :-1], visible
