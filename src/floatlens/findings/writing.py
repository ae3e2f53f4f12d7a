"""The writing rows of a trace: the attention of the queries whose logits write the tokens, in the order of writing.

An autoregressive model writes from its newest query, a masked diffusion model from the query at (or before) the
position that it commits. Only tokens of the answer count, up to and including its first end token: a masked model fills
the rest with end tokens, an autoregressive one stops.
"""

from __future__ import annotations

import json

import numpy as np

from floatlens.findings.samples import Array
from floatlens.paper import definitions
from floatlens.trace.trace import Trace


def answer_positions(trace: Trace) -> Array:
    """Positions of the answer up to and including its first special token; for a text with masks, those of the masks.

    Without the ids of special tokens in the trace, all positions after the prompt.
    """
    if trace.infill:
        return np.flatnonzero(trace.data["committed_at"].values >= 0)
    start = trace.prompt_length
    final = trace.final_tokens[start:]
    special = json.loads(trace.data.attrs.get("special_ids", "[]"))
    ends = np.flatnonzero(np.isin(final, special))
    return np.arange(start, start + (int(ends[0]) + 1 if len(ends) else len(final)))


def writing_steps(trace: Trace) -> Array:
    """Indices (along `step`) of the steps that wrote a token of the answer, in order."""
    written = trace.data["committed_at"].values[answer_positions(trace)]
    return np.flatnonzero(np.isin(trace.data["step"].values, written[written >= 0]))


def writing_profile(trace: Trace) -> Array:
    """Attention of the writing rows (writing step, layer, position), mean over heads; NaN where there is no position."""
    rows = trace.data["received_writing"].transpose("step", ..., "position").values[writing_steps(trace)]
    return np.asarray(rows, np.float32)


def floating_by_length(p_ST: Array) -> Array:
    """`definitions.floating` of the first n steps, for n = 1 … S.

    >>> floating_by_length(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    array([       nan, 0.        , 0.66666667])
    """
    there = definitions.has_anchors(p_ST)
    apart = np.abs(p_ST[:, None] - p_ST[None]).sum(axis=-1) / 2
    counted = there[:, None] & there[None] & np.tri(len(p_ST), k=-1, dtype=bool)
    sums = np.cumsum(np.where(counted, apart, 0.0).sum(axis=1))
    pairs = np.cumsum(counted.sum(axis=1))
    with_anchors = np.cumsum(there) / np.arange(1, len(p_ST) + 1)
    return np.where((pairs > 0) & (with_anchors >= 0.5), sums / np.maximum(pairs, 1), np.nan)


def renewal_by_length(p_ST: Array) -> Array:
    """`definitions.renewal` of the first n steps, for n = 1 … S, from running sums over the steps with anchors.

    >>> renewal_by_length(np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]))
    array([nan, 0. , 0.5, 0.5])
    """
    there = definitions.has_anchors(p_ST)
    n = np.arange(1, len(p_ST) + 1)
    quarter = np.maximum(1, n // 4)
    mass = np.concatenate([np.zeros((1, p_ST.shape[1])), np.cumsum(np.where(there[:, None], p_ST, 0.0), axis=0)])
    count = np.concatenate([[0], np.cumsum(there)])
    early, late = count[quarter], count[n] - count[n - quarter]
    first = mass[quarter] / np.maximum(early, 1)[:, None]
    last = (mass[n] - mass[n - quarter]) / np.maximum(late, 1)[:, None]
    known = (n > 1) & (count[n] / n >= 0.5) & (early > 0) & (late > 0)
    return np.where(known, np.abs(first - last).sum(axis=-1) / 2, np.nan)
