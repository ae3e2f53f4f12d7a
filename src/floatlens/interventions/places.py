"""The positions of an intervention's place in one attention call, and as many random ones.

Anchors are found while the model runs: the rules of `floatlens.anchors` on the received attention of one layer and step.
Rows of a left-padded batch are shifted to the left first, so that a rule gives the same result as for the row alone, equal
to `trace.anchors` of a layer without interventions and with the same input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from floatlens.anchors import Rule, find_anchors, parse_rule
from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.interventions.attention_call import AttentionCall
    from floatlens.interventions.decoding_state import DecodingState
    from floatlens.interventions.intervention import Intervention

Array = np.ndarray[Any, Any]


def columns(intervention: Intervention, attention: AttentionCall) -> Array:
    """True for the positions of an intervention's place: (R, length) for anchors, else (B, length)."""
    state = attention.state
    if "rule" not in intervention.place:
        return given_columns(intervention, state)[:, : state.length]
    anchors_RT, _ = live_anchors(attention, intervention.place["rule"])
    if regions := getattr(intervention, "regions", None):
        inside_BN = state.regions_BN(regions, everywhere=False)
        anchors_RT &= np.tile(inside_BN[:, : anchors_RT.shape[1]], (len(anchors_RT) // state.B, 1))
    return anchors_RT


def given_columns(intervention: Intervention, state: DecodingState) -> Array:
    """Columns (B, N; for a kind B, T so far) chosen by number, region or kind; computed once per run, or once per step."""
    [(way, value)] = intervention.place.items()
    key = ("columns", way, value, state.step if way == "kind" else None)
    if key not in state.notes:
        if way == "positions":
            state.notes[key] = state.positions_BN(value)
        else:
            state.notes[key] = state.regions_BN(value) if way == "region" else state.kinds_BT(value)
    chosen: Array = state.notes[key]
    return chosen


def check_place(intervention: Intervention, state: DecodingState) -> None:
    """Raise an error for positions and regions that a prompt lacks, and for a rule that may choose a whole prompt."""
    if regions := getattr(intervention, "regions", None):
        state.regions_BN(regions, everywhere=False)
    if {"positions", "region"} & set(intervention.place):
        given_columns(intervention, state)
    if "rule" in intervention.place:
        rule = parse_rule(intervention.place["rule"])
        wanted = max(rule.settings.get("n", 0.0), rule.minimum)
        if wanted >= state.shortest or (rule.name == "share" and rule.settings["eps"] * state.shortest < 1):
            raise FloatLensError(
                f"anchor rule {rule.id} may select all {state.shortest} positions of a prompt, "
                f"so no position would be left to attend to; select fewer"
            )


def live_anchors(attention: AttentionCall, rule: str | Rule) -> tuple[Array, Array]:
    """Anchors (bool) and received attention (NaN on padding), both (R, T so far), of the call's layer and step."""
    a_RT, state = attention.received_RT(), attention.state
    pads = np.tile(state.pads, len(a_RT) // state.B)
    return anchors_of_rows(a_RT, pads, parse_rule(rule), state.family.attention)


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
    anchors_RN = np.zeros(a_RN.shape, bool)
    rows, positions = np.nonzero(find_anchors(aligned, rule, attention) & there)
    anchors_RN[rows, index[rows, positions]] = True
    return anchors_RN, np.where(np.arange(N)[None] >= pads[:, None], a_RN, np.nan)


def elsewhere(state: DecodingState, logs_RT: Array, seed: int, *parts: int) -> Array:
    """The same factors at as many random real positions that they do not change: the matched control.

    The draw depends on the prompt, the seed and `parts`, not on the batch.
    """
    moved_RT = np.zeros_like(logs_RT)
    for row, logs_T in enumerate(logs_RT):
        half, prompt = divmod(row, state.B)  # guidance has a second row per prompt
        pad, changed = state.pads[prompt], np.flatnonzero(logs_T)
        free = pad + np.flatnonzero(logs_T[pad:] == 0)
        ranks = np.concatenate([np.zeros(pad), state.seed(prompt, seed, half, *parts).random(state.N - pad)])
        drawn = np.sort(free[np.argsort(ranks[free], kind="stable")][: len(changed)])
        moved_RT[row, drawn] = logs_T[changed][: len(drawn)]
    return moved_RT
