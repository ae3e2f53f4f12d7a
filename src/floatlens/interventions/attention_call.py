"""One attention call that interventions can change, and the computation of the changed call.

The changes commute, so the order of interventions does not matter. With s the scores (after `sharpen`, then `cap`):
weights = softmax(s + mask + log factors, and the sink's score). A query that would not see any key still sees itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from floatlens.anchors import find_anchors, parse_rule
from floatlens.attention.call import Inputs
from floatlens.interventions.decoding_state import DecodingState

TILE = 1 << 18  # number of scores in a tile, so that it stays in a core's cache
Array = np.ndarray[Any, Any]


class AttentionCall:
    """An attention call: R rows (twice the batch with guidance), H heads, Q queries, T keys.

    Columns are chosen as bool (B, length) over all positions so far; they are cut to the keys of the call, which for a
    sliding-window cache are the last T, and repeated for the second half of guidance. `heads` are all by default.
    """

    def __init__(self, layer: int, inputs: Inputs, state: DecodingState) -> None:
        self.layer, self.inputs, self.state = layer, inputs, state
        self.R, self.H, self.Q, self.D = inputs.q_BHQD.shape
        self.T, self.device = inputs.k_BKTD.shape[2], inputs.q_BHQD.device
        self.log_RHT: torch.Tensor | None = None
        self.factor_H: torch.Tensor | None = None
        self.softcap: float | None = None
        self.sink_H: torch.Tensor | None = None
        self.outputs: list[tuple[list[int], torch.Tensor | None]] = []

    def received_RT(self) -> Array:
        """Received attention of this layer and step without interventions in it: mean over heads, including padding."""
        return self.state.received(self.layer, self.inputs)

    def anchors(self, rule: str) -> tuple[Array, Array]:
        """Anchors (bool) and received attention (NaN on padding), both (R, T so far), of this layer and step.

        Rows are shifted to the left by their padding first, so that a rule gives the same result as for the row alone, equal
        to `trace.anchors` of a layer without interventions and with the same input.
        """
        a_RT = self.received_RT()
        R, T = a_RT.shape
        pads_R1 = np.tile(self.state.pads, R // self.state.B)[:, None]
        index_RT = np.arange(T)[None] + pads_R1
        there_RT = index_RT < T
        aligned_RT = np.where(there_RT, np.take_along_axis(a_RT, np.minimum(index_RT, T - 1), 1), np.nan)
        rows, positions = np.nonzero(find_anchors(aligned_RT, parse_rule(rule), self.state.family.attention) & there_RT)
        anchors_RT = np.zeros((R, T), bool)
        anchors_RT[rows, index_RT[rows, positions]] = True
        return anchors_RT, np.where(np.arange(T)[None] >= pads_R1, a_RT, np.nan)

    def hide(self, columns: Array, heads: Sequence[int] | None = None) -> None:
        """Hide these columns, bool (B or R, length)."""
        self.weigh(np.where(columns, -np.inf, 0.0), heads)

    def weigh(self, logs: Array, heads: Sequence[int] | None = None) -> None:
        """Add log factors, float (B or R, length), to the scores of columns; −inf hides a column."""
        cut = logs[:, max(logs.shape[1] - self.T, 0) :]
        rows = np.ascontiguousarray(np.tile(cut, (self.R // len(cut), 1)))
        added = torch.from_numpy(rows).to(self.device, torch.float32)[:, None]
        if heads is not None:
            added = torch.where(self._among(heads)[None, :, None], added, 0.0)
        self.log_RHT = added if self.log_RHT is None else self.log_RHT + added

    def sharpen(self, factor: float, heads: Sequence[int] | None = None) -> None:
        """Multiply all scores by a factor."""
        factor_H = torch.ones(self.H, device=self.device).masked_fill(self._among(heads), factor)
        self.factor_H = factor_H if self.factor_H is None else self.factor_H * factor_H

    def cap(self, cap: float) -> None:
        """Replace scores by cap · tanh(scores / cap)."""
        self.softcap = cap

    def absorb(self, score: float, heads: Sequence[int] | None = None) -> None:
        """Add a column with this score and no value."""
        sink_H = torch.full((self.H,), -torch.inf, device=self.device).masked_fill(self._among(heads), score)
        self.sink_H = sink_H if self.sink_H is None else torch.logaddexp(self.sink_H, sink_H)

    def replace(self, heads: Sequence[int], output_HD: torch.Tensor | None) -> None:
        """Replace the outputs of these heads by `output_HD`, or by zero for None."""
        self.outputs.append((list(heads), output_HD))

    def _among(self, heads: Sequence[int] | None) -> torch.Tensor:
        """True for these heads (H)."""
        among_H = torch.zeros(self.H, dtype=torch.bool, device=self.device)
        among_H[list(range(self.H) if heads is None else heads)] = True
        return among_H

    def run(self, base: Callable[[], Any]) -> tuple[Any, Inputs]:
        """The output (R, Q, H, D) as transformers expects it, and the inputs that were used.

        `base` computes the unchanged call; it is used when only outputs are replaced.
        """
        used = self.used()
        made = base() if used is self.inputs else (attend(used), None)
        if self.outputs:
            output_RQHD = made[0].clone()
            for heads, output_HD in self.outputs:
                output_RQHD[:, :, heads] = 0.0 if output_HD is None else output_HD.to(output_RQHD)
            made = (output_RQHD, *made[1:])
        return made, used

    def used(self) -> Inputs:
        """The inputs with all changes of scores applied; the same object if there are none."""
        inputs = self.inputs
        if self.factor_H is not None:
            query = inputs.q_BHQD * self.factor_H.to(inputs.q_BHQD)[None, :, None, None]
            inputs = replace(inputs, q_BHQD=query)
        if self.softcap is not None:
            inputs = replace(inputs, softcap=self.softcap)
        if self.sink_H is not None:
            sinks = self.sink_H if inputs.sinks_H is None else torch.logaddexp(self.sink_H, inputs.sinks_H.float())
            inputs = replace(inputs, sinks_H=sinks)
        if self.log_RHT is not None:
            inputs = replace(inputs, mask=self._mask(), causal=False)
        return inputs

    def _mask(self) -> torch.Tensor:
        """The additive mask (R, 1 or H, Q, T), including hidden columns and log factors.

        Hidden columns get a quarter of the lowest number, which has the same effect as −inf in a softmax. Statistics treat
        only half of the lowest number or less as invisible, so statistics of the keys do not change.
        """
        dtype, given = self.inputs.q_BHQD.dtype, self.inputs.mask
        lowest = torch.finfo(dtype).min
        visible = given if given is None or given.dtype == torch.bool else given > torch.finfo(given.dtype).min / 2
        if self.inputs.causal:
            past_QT = torch.ones(self.Q, self.T, dtype=torch.bool, device=self.device).tril()[None, None]
            visible = past_QT if visible is None else visible & past_QT
        mask = torch.zeros(1, 1, 1, self.T, dtype=dtype, device=self.device)
        if given is not None and given.dtype != torch.bool:
            mask = mask + given
        assert self.log_RHT is not None
        hidden_RH1T = (self.log_RHT == -torch.inf)[:, :, None]
        mask = mask + self.log_RHT[:, :, None].masked_fill(hidden_RH1T, 0.0).to(dtype)
        if bool(hidden_RH1T.any()):
            mask = mask.masked_fill(~self._kept(visible, ~hidden_RH1T), lowest / 4)
        if visible is not None:
            mask = mask.masked_fill(~visible, lowest)
        return mask.expand(-1, -1, self.Q, -1)

    def _kept(self, visible: torch.Tensor | None, shown: torch.Tensor) -> torch.Tensor:
        """The keys that are still visible; a query that would see none still sees itself, if it could before."""
        left = shown if visible is None else visible & shown
        empty = ~left.any(-1, keepdim=True)
        if not bool(empty.any()):
            return left
        itself_QT = torch.zeros(self.Q, self.T, dtype=torch.bool, device=self.device)
        positions = torch.arange(self.Q, device=self.device)
        itself_QT[positions, positions + self.T - self.Q] = True
        own = itself_QT[None, None] if visible is None else itself_QT & visible
        return left | (empty & own)


def attend(inputs: Inputs) -> torch.Tensor:
    """Attention output (R, Q, H, D) from the fast kernel; with a soft cap, computed from explicit scores in tiles."""
    groups = inputs.q_BHQD.shape[1] // inputs.k_BKTD.shape[1]
    key, value = (x if groups == 1 else x.repeat_interleave(groups, dim=1) for x in (inputs.k_BKTD, inputs.v_BKTD))
    inputs = replace(inputs, k_BKTD=key, v_BKTD=value)
    if inputs.softcap is not None:
        return explicit(inputs)
    mask, causal, Q, T = inputs.mask, inputs.causal, inputs.q_BHQD.shape[2], key.shape[2]
    if inputs.bias is not None or inputs.sinks_H is not None:
        mask, causal = additive(inputs), False
    if inputs.sinks_H is not None:
        mask, key, value = with_sink(inputs, mask)
    if mask is not None:
        mask = mask.expand(*mask.shape[:2], Q, mask.shape[-1])
    output = torch.nn.functional.scaled_dot_product_attention(
        inputs.q_BHQD, key, value, attn_mask=mask, scale=inputs.scaling, is_causal=causal and mask is None and T > 1
    )
    return output.transpose(1, 2).contiguous()


def additive(inputs: Inputs) -> torch.Tensor:
    """Mask, causality and position bias as one additive mask."""
    query, T = inputs.q_BHQD, inputs.k_BKTD.shape[2]
    lowest = torch.finfo(query.dtype).min
    mask = torch.zeros(1, 1, 1, T, dtype=query.dtype, device=query.device)
    if inputs.bias is not None:
        mask = mask + inputs.bias[..., :T].to(query.dtype)
    if inputs.mask is not None:
        boolean = inputs.mask.dtype == torch.bool
        mask = mask.masked_fill(~inputs.mask, lowest) if boolean else mask + inputs.mask.to(query.dtype)
    if inputs.causal:
        future = ~torch.ones(query.shape[2], T, dtype=torch.bool, device=query.device).tril()
        mask = mask.masked_fill(future, lowest)
    return mask


def with_sink(inputs: Inputs, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mask, keys and values with one more column: a key of zero, so that the mask is its score, and a value of zero."""
    assert mask is not None and inputs.sinks_H is not None
    R, H = inputs.q_BHQD.shape[:2]
    sinks = inputs.sinks_H.to(mask.dtype).clamp_min(torch.finfo(mask.dtype).min)
    same = bool((sinks == sinks[0]).all())  # then one column serves all heads, and the mask stays small
    column = sinks[:1].view(1, 1, 1, 1) if same else sinks.view(1, H, 1, 1)
    lead = torch.broadcast_shapes(mask.shape[:-1], column.shape[:-1])
    grown = torch.cat([mask.expand(*lead, -1), column.expand(*lead, 1)], -1)
    more = [torch.cat([x, x.new_zeros(R, H, 1, x.shape[-1])], 2) for x in (inputs.k_BKTD, inputs.v_BKTD)]
    return grown, *more  # type: ignore[return-value]


def explicit(inputs: Inputs) -> torch.Tensor:
    """Attention with a soft cap from explicit scores, one tile of queries at a time."""
    R, H, Q, D = inputs.q_BHQD.shape
    T, cap = inputs.k_BKTD.shape[2], inputs.softcap
    assert cap is not None
    query = inputs.q_BHQD.float() * ((D**-0.5 if inputs.scaling is None else inputs.scaling) / cap)
    keys, values = inputs.k_BKTD.float().transpose(2, 3), inputs.v_BKTD.float()
    masked = inputs.mask is not None or inputs.causal or inputs.bias is not None
    mask = additive(inputs).float().expand(-1, -1, Q, -1) if masked else None
    output = torch.empty(R, Q, H, values.shape[-1], device=query.device)
    for start in range(0, Q, rows := max(1, TILE // (R * H * T))):
        part = slice(start, start + rows)
        scores = (query[:, :, part] @ keys).tanh_().mul_(cap)
        if mask is not None:
            scores += mask[:, :, part]
        if inputs.sinks_H is not None:
            sinks = inputs.sinks_H.float().view(1, H, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], -1)
        output[:, part] = (scores.softmax(-1)[..., :T] @ values).transpose(1, 2)
    return output.to(inputs.q_BHQD.dtype)
