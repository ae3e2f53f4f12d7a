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

    call: Call | None = None
    before: Call | None = None  # the call of the previous step, and its weights
    all_5BHNN: torch.Tensor
    seen_Q: torch.Tensor
    value_BKT: torch.Tensor
    weights_BHQT: torch.Tensor

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
        N, queries = call.length, call.query_positions
        all_5BHNN, seen_N = q.new_zeros(5, call.B, call.H, N, N), torch.zeros(N, dtype=torch.bool, device=q.device)
        value_BKN = q.new_zeros(call.B, call.K, N)
        if self.call is not None:
            self.before, self.weights_before_BHQT = self.call, self.weights_BHQT
        if self.call is not None and not call.starts_over:
            old = self.call.length
            all_5BHNN[..., :old, :old], seen_N[:old], value_BKN[..., :old] = self.all_5BHNN, self.seen_Q, self.value_BKT
        all_5BHNN[..., queries, call.first_key :] = torch.stack([weights, score, norm, cos, visible.float()])
        seen_N[queries] = True
        new = call.first_key if call.starts_over else call.first_query
        value_BKN[..., new:] = call.v_BKTD.float().norm(dim=-1)[..., new - N :]
        self.all_5BHNN, self.seen_Q, self.value_BKT = all_5BHNN, seen_N, value_BKN
        self.weights_BHQT, self.score_BHQT, self.norm_BHQT, self.cos_BHQT, shown_BHQT = all_5BHNN
        self.visible_BHQT = shown_BHQT.bool()
        self.call = replace(call, k_BKTD=call.k_BKTD.clone(), v_BKTD=call.v_BKTD.clone())

    def real_rows(self, call: Call) -> torch.Tensor:
        """1.0 for queries that were computed and are not padding, over all positions so far (B, 1, Q, 1)."""
        real = call.layout.real_BN
        rows = torch.ones(call.B, call.length) if real is None else real[:, : call.length].float()
        return (rows.to(call.device) * self.seen_Q)[:, None, :, None]


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
