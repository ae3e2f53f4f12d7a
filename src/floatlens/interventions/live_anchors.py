"""Find anchors while the model runs: the rules of `floatlens.anchors` on the received attention of one layer and step.

Rows of a left-padded batch are shifted to the left first, so that a rule gives the same result as for the row alone, equal
to `trace.anchors` of a layer without interventions and with the same input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from floatlens.anchors import Rule, find_anchors, parse_rule
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.attention.call import PositionLayout
    from floatlens.attention.inputs import Inputs
    from floatlens.attention.session import Session
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState

Array = np.ndarray[Any, Any]


class UnchangedReceived:
    """Received attention (R, T so far) of a layer without interventions, mean over heads; with a cache, a running mean."""

    def __init__(self, state: DecodingState) -> None:
        self.state = state
        self.sessions: dict[int, Session] = {}
        self.now: dict[int, Array] = {}

    def begin(self) -> None:
        """Prepare for a new step."""
        self.now = {}

    def __call__(self, layer: int, inputs: Inputs) -> Array:
        if layer not in self.now:
            rows = inputs.query.shape[0]
            if rows not in self.sessions:
                from floatlens.attention.session import Session

                names = ["received", "received_final"]
                self.sessions[rows] = Session(names, layout=self._layout(rows, inputs))
            session = self.sessions[rows]
            session.begin()
            session.see(layer, **inputs.shown())
            # A pass that only fills the cache of a block model has no active rows: use its final rows.
            found = session.results["received"].get(layer, session.results["received_final"].get(layer))
            assert found is not None
            self.now[layer] = found.mean(1).double().cpu().numpy()
        return self.now[layer]

    def _layout(self, rows: int, inputs: Inputs) -> PositionLayout:
        import torch

        from floatlens.attention.call import PositionLayout

        device, batch = inputs.query.device, self.state.batch
        real = torch.from_numpy(self.state.real_BN()).to(device).repeat(rows // self.state.B, 1)
        none = torch.zeros_like(real)
        region = torch.zeros(real.shape, dtype=torch.long, device=device).masked_fill(~real, -1)
        return PositionLayout(real if batch.real_BP is not None else None, region, [["other"]] * rows, none, none)


def find_live_anchors(attention: AttentionCall, rule: str | Rule) -> tuple[Array, Array]:
    """Anchors (bool) and received attention (NaN on padding), both (R, T so far), of the call's layer and step."""
    state = attention.state
    a_RN = attention.received_RT()
    pads = np.tile(state.pads, len(a_RN) // state.B)
    return anchors_of_rows(a_RN, pads, parse_rule(rule), state.family.attention)


def anchors_of_rows(a_RN: Array, pads: Array, rule: Rule, attention: str) -> tuple[Array, Array]:
    """Anchors of left-padded rows, each as it would be found alone, and the rows with NaN on their padding.

    >>> a = np.array([[0.7, 0.2, 0.1], [0.0, 0.4, 0.6]])
    >>> anchors_of_rows(a, np.array([0, 1]), parse_rule("first"), "causal")[0]
    array([[ True, False, False],
           [False,  True, False]])
    """
    N = a_RN.shape[1]
    index = np.arange(N)[None] + pads[:, None]
    there = index < N
    aligned = np.where(there, np.take_along_axis(a_RN, np.minimum(index, N - 1), 1), np.nan)
    chosen = find_anchors(aligned, rule, attention) & there
    found = np.zeros(a_RN.shape, bool)
    rows, positions = np.nonzero(chosen)
    found[rows, index[rows, positions]] = True
    real = np.arange(N)[None] >= pads[:, None]
    return found, np.where(real, a_RN, np.nan)


def draw_others(state: DecodingState, chosen: Array, seed: int, *parts: int) -> Array:
    """For each row, the same number of random real positions that are not chosen: the matched control.

    The draw depends on the prompt, the seed and `parts`, not on the batch.
    """
    found = np.zeros_like(chosen)
    N = chosen.shape[1]
    for row in range(len(chosen)):
        pad = state.pads[row % state.B]
        free = np.flatnonzero(~chosen[row, pad:])
        ranks = state.seed(row % state.B, seed, row // state.B, *parts).random(state.N - pad)[: N - pad]
        drawn = free[np.argsort(ranks[free], kind="stable")][: int(chosen[row, pad:].sum())]
        found[row, pad + drawn] = True
    return found


def check_leaves_some(rule: str, state: DecodingState) -> None:
    """Raise an error for a rule that would choose every position of the shortest row."""
    parsed = parse_rule(rule)
    wanted = max(parsed.settings.get("n", 0.0), parsed.minimum)
    if wanted >= state.shortest or (parsed.name == "share" and parsed.settings["eps"] * state.shortest < 1):
        raise FloatLensError(
            f"anchor rule {parsed.id} may select all {state.shortest} positions of a prompt, "
            f"so no position would be left to attend to; select fewer"
        )
