"""The reference implementation: every statistic from the full matrix, by its definition, layer by layer, in float32.

It shares no arithmetic with the tiles: keys are repeated for GQA, masks are dense, and means are taken over full matrices.
Memory grows with the square of the length. Use it in tests and to check a surprising result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from floatlens.attention.call import Call
from floatlens.attention.registry import STATISTICS
from floatlens.errors import FloatLensError


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
        visible = torch.ones_like(score, dtype=torch.bool)
        logits = score * call.scaling
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
        logits = logits.masked_fill(~visible, -torch.inf)
        if call.sinks_H is not None:
            sink = call.sinks_H.float()[None, :, None, None].expand(call.B, -1, call.Q, 1)
            weights = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        if call.implicit is not None:
            weights, visible = call.implicit.exact_weights(), call.implicit.visible().expand_as(score)
            if call.layout.real_BN is not None:  # softmax attention has its padding in the mask
                visible = visible & call.layout.real_BN[:, None, None, : call.length]
        if call.real_BQ is not None:
            weights = weights.masked_fill(~call.real_BQ[:, None, :, None], 0.0)
        before, weights_before = self.call, self.weights_BHQT
        if call.fresh:
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
        if call.fresh:
            self.value_BKT = torch.nn.functional.pad(value, (call.first_key, 0))
        else:
            self.value_BKT = torch.cat([self.value_BKT, value[..., call.query_keys]], -1)

    def real_rows(self, call: Call) -> torch.Tensor:
        """1.0 for queries that were computed and are not padding, over all positions so far (B, 1, Q, 1)."""
        real = call.layout.real_BN
        rows = torch.ones(call.B, call.length) if real is None else real[:, : call.length].float()
        return (rows.to(call.q_BHQD.device) * self.seen_Q)[:, None, :, None]

    def _append(self, name: str, rows: torch.Tensor, call: Call) -> None:
        before = getattr(self, name)
        whole = rows.new_zeros(call.B, call.H, call.length, call.length)
        if before.numel():
            whole[:, :, : before.shape[2], : before.shape[3]] = before
        whole[:, :, call.query_positions, call.first_key :] = rows
        setattr(self, name, whole)


def received(m: ExactMatrices, call: Call) -> torch.Tensor:
    rows = m.real_rows(call)
    return torch.where(rows > 0, m.weights_BHQT, 0.0).sum(2) / rows.sum(2)


def entropy(m: ExactMatrices, call: Call) -> torch.Tensor:
    rows = m.real_rows(call)
    weights = torch.where(rows > 0, m.weights_BHQT, 0.0)
    if call.sinks_H is not None:
        weights = torch.where(rows > 0, weights / weights.sum(-1, keepdim=True), 0.0)
    return torch.special.entr(weights).sum((-1, -2)) / rows.sum((-1, -2))


def column_mean(matrix_BHQT: torch.Tensor, m: ExactMatrices, call: Call) -> torch.Tensor:
    seen = m.visible_BHQT & (m.real_rows(call) > 0)
    return torch.where(seen, matrix_BHQT, 0.0).sum(2) / seen.sum(2)


def flow(m: ExactMatrices, call: Call) -> torch.Tensor:
    count = max(len(names) for names in call.layout.region_names)
    mean_BQT = m.weights_BHQT.mean(1)
    out = torch.zeros(call.B, count, count)
    region_BN = call.layout.region_BN[:, : call.length]
    for row in range(call.B):
        for a in range(count):
            for b in range(count):
                out[row, a, b] = mean_BQT[row][region_BN[row] == a][:, region_BN[row] == b].sum()
    total = out.sum(-1, keepdim=True)
    return torch.where(total > 0, out / total, 0.0)


def evidence(m: ExactMatrices, call: Call) -> torch.Tensor:
    weights = m.weights_BHQT[:, :, call.query_positions]
    gold = call.layout.gold_BN[:, None, None, : call.length]
    mass = torch.where(gold, weights, 0.0).sum(-1)
    pair = torch.stack([mass, weights.argmax(-1).float()], -1)
    writes = call.layout.writes_BN[:, None, call.query_positions, None]
    return torch.where(writes, pair, torch.nan)


def received_writing(m: ExactMatrices, call: Call) -> torch.Tensor:
    rows = call.layout.writes_BN.any(0).nonzero()[:, 0].tolist()
    out = torch.full((call.B, rows[-1] + 1 - rows[0] if rows else 0, call.length), torch.nan)
    for b, q in call.layout.writes_BN.nonzero().tolist():
        if call.first_query <= q < call.length:
            out[b, q - rows[0]] = m.weights_BHQT[b, :, q].mean(0)
    return out


def query_mass(m: ExactMatrices, call: Call) -> torch.Tensor:
    out = torch.full((call.B, call.H), torch.nan)
    for row, names in enumerate(call.layout.region_names):
        asks = call.layout.region_BN[row, : call.length] == (names.index("query") if "query" in names else -2)
        asks = asks & m.seen_Q
        if asks.any():
            on_gold = m.weights_BHQT[row][:, asks][:, :, call.layout.gold_BN[row, : call.length]]
            out[row] = on_gold.sum(-1).mean(-1)
    return out


EXACT: dict[str, Callable[[ExactMatrices, Call], torch.Tensor]] = {
    "received": received,
    "received_final": received,
    "received_writing": received_writing,
    "entropy": entropy,
    "qk": lambda m, call: column_mean(m.score_BHQT, m, call),
    "qk_norm": lambda m, call: column_mean(m.norm_BHQT, m, call),
    "qk_cos": lambda m, call: column_mean(m.cos_BHQT, m, call),
    "value_norm": lambda m, call: m.value_BKT,
    "flow": flow,
    "evidence": evidence,
    "query_mass": query_mass,
    "attention": lambda m, call: torch.where(m.real_rows(call) > 0, m.weights_BHQT, 0.0)[:, :, call.query_positions],
    "attention_mean": lambda m, call: torch.where(m.real_rows(call) > 0, m.weights_BHQT, 0.0)[
        :, :, call.query_positions
    ].mean(1),
    "queries": lambda m, call: call.q_BHQD.float(),
    "keys": lambda m, call: call.k_BKTD[:, :, call.query_keys].float(),
}


def exact_statistic(name: str) -> Callable[[ExactMatrices, Call], torch.Tensor]:
    """Look up the definition of a statistic: in this module, or the method `exact` of its class."""
    definition = EXACT.get(name) or getattr(STATISTICS[name], "exact", None)
    if definition is None:
        raise FloatLensError(f"statistic {name!r} has no exact definition; use implementation='stream'")
    return definition
