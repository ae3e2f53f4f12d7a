"""One attention call that interventions can change, its changed computation, and the state of the run that it belongs to.

The change that `run.py` installs makes one call per layer and forward pass, and passes it to each intervention of the layer.
The changes commute, so the order of interventions does not matter. With s the scores (after `sharpen`, then `cap`):
weights = softmax(s + mask + log factors, and the sink's score). A query that would not see any key still sees itself.

Positions count from each row's first real token; tensors here count the padding, so row b's position j is column
`pads[b] + j`. Shapes: B rows, N positions of the whole run, T positions so far.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from floatlens.anchors import find_anchors
from floatlens.attention.call import Inputs, PositionLayout, visible
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Session
from floatlens.attention.stream import TILE
from floatlens.data.token_kinds import GROUPS as GROUP_OF
from floatlens.data.token_kinds import classify
from floatlens.decode.network import ForwardPass
from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Array, select_numbers
from floatlens.models.family import Family

GOLD, DOCS, PROMPT, TEMPLATE = "gold", "docs", "prompt", "template"
GROUPS = (GOLD, DOCS, PROMPT, TEMPLATE)  # names for several regions, or for positions in no region


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
        """Received attention of this layer and step without interventions in it (R, T so far), including padding.

        It is the mean over heads; with a cache, over all queries so far.
        """
        state = self.state
        if self.layer not in state.received:
            if self.R not in state.sessions:
                real_RN = torch.from_numpy(np.tile(state.real_BN(), (self.R // state.B, 1))).to(self.device)
                padding = None if state.batch.real_BP is None else real_RN
                layout = PositionLayout.without_regions(self.R, state.N, self.device, padding)
                state.sessions[self.R] = Session(["received", "received_final"], layout=layout)
            session = state.sessions[self.R]
            session.begin()
            session.see(self.layer, self.inputs)
            # A pass that only fills the cache of a block model has no active rows: use its final rows.
            results, final = (session.results[name] for name in ("received", "received_final"))
            received_RHT = results[self.layer] if self.layer in results else final[self.layer]
            state.received[self.layer] = received_RHT.mean(1).double().cpu().numpy()
        return state.received[self.layer]

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


class DecodingState:
    """One run of a batch: B rows, P prompt columns, N columns in all. `notes` is kept from step to step.

    `strings` converts token ids to the tokenizer's pieces; `shortest` is the number of positions of the shortest row at
    the first step.
    """

    def __init__(
        self,
        batch: PromptBatch,
        new_tokens: int,
        family: Family,
        strings: Callable[[Sequence[int]], list[str]],
        tokens_BT: torch.Tensor,
    ) -> None:
        self.batch, self.new_tokens, self.family, self.strings = batch, new_tokens, family, strings
        self.tokens_BT, self.step, self.pads = tokens_BT, 0, batch.pads
        self.forward: ForwardPass | None = None
        self.B, self.P = batch.ids_BP.shape
        self.N = self.P + new_tokens
        self.shortest = min(len(p.ids) for p in batch.prompts) + (0 if family.cached else new_tokens)
        self.notes: dict[Any, Any] = {}
        self.sessions: dict[int, Session] = {}  # by number of rows
        self.received: dict[int, Array] = {}  # attention by layer, of the current pass

    @property
    def length(self) -> int:
        """Number of positions so far, including padding."""
        return self.tokens_BT.shape[1]

    def begin_pass(self, tokens_BT: torch.Tensor, forward: ForwardPass | None = None) -> None:
        """Prepare for a forward pass over these tokens; a step may take several."""
        self.tokens_BT, self.forward = tokens_BT, forward
        self.received = {}

    def real_BN(self) -> Array:
        """True for positions that are not padding."""
        return np.arange(self.N)[None] >= np.array(self.pads)[:, None]

    def elsewhere(self, logs_RT: Array, seed: int, *parts: int, received_RT: Array | None = None) -> Array:
        """The same factors at random real positions that they do not change: the matched control.

        As many positions, or with `received_RT` those that move as much attention (see `match_moved`). The draw depends on
        the prompt, the seed and `parts`, not on the batch.
        """
        moved_RT = np.zeros_like(logs_RT)
        for row, logs_T in enumerate(logs_RT):
            half, prompt = divmod(row, self.B)  # guidance has a second row per prompt
            pad, changed = self.pads[prompt], np.flatnonzero(logs_T)
            free = pad + np.flatnonzero(logs_T[pad:] == 0)
            ids = np.asarray(self.batch.prompts[prompt].ids, dtype=np.int64)
            random = np.random.default_rng([zlib.crc32(ids.tobytes()), seed, half, *parts])
            ranks = np.concatenate([np.zeros(pad), random.random(self.N - pad)])
            order = free[np.argsort(ranks[free], kind="stable")]
            if received_RT is None or not len(changed):
                drawn = np.sort(order[: len(changed)])
                moved_RT[row, drawn] = logs_T[changed][: len(drawn)]
            else:
                a_T = np.where(np.arange(len(logs_T)) >= pad, np.nan_to_num(received_RT[row]), 0.0)
                moved_RT[row] = match_moved(a_T, logs_T, order)
        return moved_RT

    def columns(self, way: str, value: Any) -> Array:
        """Columns (B, N) chosen by positions, region or the kind of their tokens; found once per run, kinds once per step.

        Each row must have each region; with the way "regions", at least one row must.
        """
        key = ("columns", way, value, self.step if way == "kind" else None)
        if key not in self.notes:
            columns_BN = np.zeros((self.B, self.N), bool)
            named = way in ("region", "regions")
            for one in value if named else [value]:
                positions = [self._positions(row, way, one) for row in range(self.B)]
                missing = [row for row in range(self.B) if not positions[row]]
                if named and missing and (way == "region" or len(missing) == self.B):
                    there = [region.name for region in self.batch.regions(missing[0], self.new_tokens)]
                    names = ", ".join([*there, *GROUPS])
                    raise FloatLensError(f"region {one!r} is not in the prompt; its regions are {names}")
                for row, pad in enumerate(self.pads):
                    columns_BN[row, [pad + j for j in positions[row]]] = True
            self.notes[key] = columns_BN
        chosen_BN: Array = self.notes[key]
        return chosen_BN

    def _positions(self, row: int, way: str, value: Any) -> list[int]:
        """Positions of a row, from its first real token on: by numbers, by kinds of tokens, or by the name of a region."""
        prompt, regions = self.batch.prompts[row], self.batch.regions(row, self.new_tokens)
        if way == "positions":
            return select_numbers(value, len(prompt.ids) + self.new_tokens, "position")
        outside = {*range(len(prompt.ids))} if prompt.regions else set[int]()
        for region in prompt.regions:
            outside.difference_update(range(region.start, region.end))
        if way == "kind":
            if ("kinds", row) not in self.notes:  # the prompt's kinds never change
                template = [j in outside for j in range(len(prompt.ids))]
                self.notes["kinds", row] = classify(self.strings(prompt.ids), template)
            written = self.tokens_BT[row, self.P :].tolist()
            kinds = [*self.notes["kinds", row], *(classify(self.strings(written)) if written else [])]
            return [j for j, kind in enumerate(kinds) if kind in value or GROUP_OF.get(kind) in value]
        if value == PROMPT:
            return list(range(len(prompt.ids)))
        if value == TEMPLATE:
            return sorted(outside)
        wanted = {value}
        if value == GOLD:
            wanted = set(self.batch.gold(row))
        elif value == DOCS:
            wanted = {r.name for r in regions if r.name.startswith("doc") and r.name[3:].isdecimal()}
        return [j for r in regions if r.name in wanted for j in range(r.start, r.end)]


def match_moved(a_T: Array, logs_T: Array, order: Array) -> Array:
    """The factors of `logs_T` at other positions, taken in `order`, that move received attention as far: total variation.

    At least as many positions as `logs_T` changes, more if they move less, but never more than half of the others; if they
    move more, all factors are brought nearer to 1. As many random positions would move far less than a sink, or, with the
    factors of an exchange, far more.

    >>> a, hide = np.array([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0]), np.array([-np.inf] + [0.0] * 7)
    >>> match_moved(a, hide, np.arange(1, 8)).tolist()  # three of seven, although four would move as much
    [0.0, -inf, -inf, -inf, 0.0, 0.0, 0.0, 0.0]
    """
    values, target = logs_T[logs_T != 0], moved_attention(a_T, logs_T)
    made_T = np.zeros_like(logs_T)
    for n, position in enumerate(order):
        if n >= len(values) and (n >= len(order) // 2 or moved_attention(a_T, made_T) >= target):
            break
        made_T[position] = values[n % len(values)]
    if np.isfinite(values).all() and moved_attention(a_T, made_T) > target:
        less, more = 0.0, 1.0
        for _ in range(30):
            middle = (less + more) / 2
            less, more = (less, middle) if moved_attention(a_T, middle * made_T) > target else (middle, more)
        made_T *= less
    return made_T


def moved_attention(a_T: Array, logs_T: Array) -> float:
    """Total variation between received attention and itself after log factors on its columns, normalised."""
    weighed_T = a_T * np.exp(logs_T)
    return float(np.abs(weighed_T / max(weighed_T.sum(), 1e-12) - a_T / max(a_T.sum(), 1e-12)).sum() / 2)
