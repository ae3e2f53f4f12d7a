"""One attention call that interventions can change, and the computation of the changed call.

The change that `run.py` installs makes one per layer and forward pass, and passes it to each intervention of the layer.

The changes commute, so the order of interventions does not matter. With s the scores (after `sharpen`, then `cap`):
weights = softmax(s + mask + log factors, and the sink's score). A query that would not see any key still sees itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from floatlens.anchors import find_anchors
from floatlens.attention.call import Inputs, visible
from floatlens.attention.stream import TILE
from floatlens.interventions.decoding_state import DecodingState
from floatlens.interventions.intervention import Array


class AttentionCall:
    """An attention call: R rows (twice the batch with guidance), H heads, Q queries, T keys.

    Columns are chosen as bool (B, length) over all positions so far; they are cut to the keys of the call, which for a
    sliding-window cache are the last T, and repeated for the second half of guidance. `heads` are all by default.
    """

    def __init__(self, layer: int, inputs: Inputs, state: DecodingState) -> None:
        self.layer, self.inputs, self.state = layer, inputs, state
        self.R, self.H, self.Q, self.T, self.device = inputs.B, inputs.H, inputs.Q, inputs.T, inputs.device
        self.changed = inputs  # with all changes but those of `log_RHT`
        self.log_RHT: torch.Tensor | None = None
        self.outputs: list[tuple[list[int], torch.Tensor | None]] = []

    def received_RT(self) -> Array:
        """Received attention of this layer and step without interventions in it: mean over heads, including padding."""
        return self.state.received(self.layer, self.inputs)

    def anchors(self, rule: str) -> tuple[Array, Array]:
        """Anchors (bool) and received attention (NaN on padding), both (R, T so far), of this layer and step.

        A rule is applied to rows of the same padding without it, so that it gives the same result as for the row alone,
        equal to `trace.anchors` of a layer without interventions and with the same input.
        """
        a_RT = self.received_RT().copy()
        anchors_RT, pads_R = np.zeros(a_RT.shape, bool), np.tile(self.state.pads, len(a_RT) // self.state.B)
        for pad in set(self.state.pads):
            rows = pads_R == pad
            anchors_RT[rows, pad:] = find_anchors(a_RT[rows, pad:], rule, self.state.family.attention)
            a_RT[rows, :pad] = np.nan
        return anchors_RT, a_RT

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
        q_BHQD = self.changed.q_BHQD
        factor_H = torch.ones(self.H, device=self.device).masked_fill(self._among(heads), factor).to(q_BHQD)
        self.changed = replace(self.changed, q_BHQD=q_BHQD * factor_H[:, None, None])

    def cap(self, cap: float) -> None:
        """Replace scores by cap · tanh(scores / cap)."""
        self.changed = replace(self.changed, softcap=cap)

    def absorb(self, score: float, heads: Sequence[int] | None = None) -> None:
        """Add a column with this score and no value."""
        sinks_H = torch.full((self.H,), -torch.inf, device=self.device).masked_fill(self._among(heads), score)
        if (own_H := self.changed.sinks_H) is not None:
            sinks_H = torch.logaddexp(sinks_H, own_H.float())
        self.changed = replace(self.changed, sinks_H=sinks_H)

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
        return (
            self.changed if self.log_RHT is None else replace(self.changed, mask=self._mask(self.log_RHT), causal=False)
        )

    def _mask(self, log_RHT: torch.Tensor) -> torch.Tensor:
        """The additive mask (R, 1 or H, Q, T), including hidden columns and log factors.

        Hidden columns get a quarter of the lowest number, which has the same effect as −inf in a softmax. Statistics treat
        only half of the lowest number or less as invisible, so statistics of the keys do not change.
        """
        dtype, given = self.inputs.q_BHQD.dtype, self.inputs.mask
        lowest = torch.finfo(dtype).min
        seen = None if given is None else visible(given)
        if self.inputs.causal:
            past_QT = ~self.inputs.future(0, self.Q)[None, None]
            seen = past_QT if seen is None else seen & past_QT
        mask = torch.zeros(1, 1, 1, self.T, dtype=dtype, device=self.device)
        if given is not None and given.dtype != torch.bool:
            mask = mask + given
        hidden_RH1T = (log_RHT == -torch.inf)[:, :, None]
        mask = mask + log_RHT[:, :, None].masked_fill(hidden_RH1T, 0.0).to(dtype)
        if bool(hidden_RH1T.any()):
            mask = mask.masked_fill(~self._kept(seen, ~hidden_RH1T), lowest / 4)
        if seen is not None:
            mask = mask.masked_fill(~seen, lowest)
        return mask.expand(-1, -1, self.Q, -1)

    def _kept(self, seen: torch.Tensor | None, shown: torch.Tensor) -> torch.Tensor:
        """The keys that are still visible; a query that would see none still sees itself, if it could before."""
        left = shown if seen is None else seen & shown
        itself_QT = torch.ones(self.Q, self.T, dtype=torch.bool, device=self.device)
        itself_QT = itself_QT.tril(self.T - self.Q).triu(self.T - self.Q)
        own = itself_QT if seen is None else itself_QT & seen
        return left | (~left.any(-1, keepdim=True) & own)


def attend(inputs: Inputs) -> torch.Tensor:
    """Attention output (R, Q, H, D) from the fast kernel; from explicit weights in tiles if it has no such attention."""
    R, H, Q, T = inputs.B, inputs.H, inputs.Q, inputs.T
    if inputs.is_plain:
        groups, mask = H // inputs.K, inputs.mask
        key, value = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (inputs.k_BKTD, inputs.v_BKTD))
        mask = None if mask is None else mask.expand(*mask.shape[:2], Q, mask.shape[-1])
        causal = inputs.causal and mask is None and T > 1
        output = torch.nn.functional.scaled_dot_product_attention(
            inputs.q_BHQD, key, value, attn_mask=mask, scale=inputs.scaling, is_causal=causal
        )
        return output.transpose(1, 2).contiguous()
    values_MTD = inputs.v_BKTD.float().flatten(0, 1)
    output = torch.empty(R, Q, H, values_MTD.shape[-1], device=inputs.device)
    rows = max(1, TILE // (R * H * T))
    for start in range(0, Q, rows):
        end = min(Q, start + rows)
        weights_RHQT = inputs.softmax(start, end).nan_to_num_()  # a row of padding may see no key
        made = torch.bmm(weights_RHQT.reshape(R * inputs.K, -1, T), values_MTD)
        output[:, start:end] = made.view(R, H, end - start, -1).transpose(1, 2)
    return output.to(inputs.q_BHQD.dtype)
