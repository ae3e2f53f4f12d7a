"""The state of a run that interventions can read: positions, regions, token kinds and the current step.

Positions count from each row's first real token; tensors here count the padding, so row b's position j is column
`pads[b] + j`. Shapes: B rows, N positions of the whole run, T positions so far.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from floatlens.attention.call import Inputs, PositionLayout
from floatlens.attention.prompt_batch import PromptBatch
from floatlens.attention.session import Session
from floatlens.data.token_kinds import GROUPS as GROUP_OF
from floatlens.data.token_kinds import classify
from floatlens.decode.network import ForwardPass
from floatlens.errors import FloatLensError
from floatlens.interventions.intervention import Array, select_numbers
from floatlens.models.family import Family

GOLD, DOCS, PROMPT, TEMPLATE = "gold", "docs", "prompt", "template"
GROUPS = (GOLD, DOCS, PROMPT, TEMPLATE)  # names for several regions, or for positions in no region


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
        self._sessions: dict[int, Session] = {}
        self._received: dict[int, Array] = {}  # by layer, of the current pass

    @property
    def length(self) -> int:
        """Number of positions so far, including padding."""
        return self.tokens_BT.shape[1]

    def begin_pass(self, tokens_BT: torch.Tensor, forward: ForwardPass | None = None) -> None:
        """Prepare for a forward pass over these tokens; a step may take several."""
        self.tokens_BT, self.forward = tokens_BT, forward
        self._received = {}

    def received(self, layer: int, inputs: Inputs) -> Array:
        """Received attention (R, T so far) of a layer without interventions: mean over heads; with a cache, running."""
        if layer not in self._received:
            rows = inputs.B
            if rows not in self._sessions:
                padded, device = self.batch.real_BP is not None, inputs.device
                real = torch.from_numpy(self.real_BN()).to(device).repeat(rows // self.B, 1) if padded else None
                layout = PositionLayout.without_regions(rows, self.N, device, real)
                self._sessions[rows] = Session(["received", "received_final"], layout=layout)
            session = self._sessions[rows]
            session.begin()
            session.see(layer, inputs)
            # A pass that only fills the cache of a block model has no active rows: use its final rows.
            received_RHT = session.results["received"].get(layer, session.results["received_final"].get(layer))
            assert received_RHT is not None
            self._received[layer] = received_RHT.mean(1).double().cpu().numpy()
        return self._received[layer]

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
