"""Generation: what a model wrote, cut at its end token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from floatlens.lens import Lens
    from floatlens.record.trace import Trace


@dataclass(frozen=True)
class Generation:
    """What a model wrote.

    text, ids    the answer, cut before the first end token
    steps        number of forward passes; of an autoregressive model, those up to and with the end token
    confidence   mean probability of the tokens up to and with the end token, each at the step that committed it
    ended        whether there is an end token
    """

    text: str
    ids: list[int]
    steps: int
    confidence: float
    ended: bool

    @classmethod
    def from_trace(cls, lens: Lens, trace: Trace) -> Generation:
        """What the lens wrote while the trace was recorded; equal to what `generate` returns for the same prompt."""
        data, start = trace.data, trace.prompt_length
        written = [int(i) for i in trace.final_tokens[start:]]
        ids, ended = cut_at_end(written, lens.end_ids)
        used = np.arange(start, start + len(ids) + ended)
        recorded = {int(step): index for index, step in enumerate(data["step"].values)}
        committed = [(recorded.get(int(data["committed_at"].values[p])), p) for p in used]
        confidence = np.array([data["confidence"].values[at] for at in committed if at[0] is not None], np.float32)
        steps = len(used) if trace.kind == "arm" else int(data["step"].values[-1]) + 1
        mean = float(np.nanmean(confidence)) if np.isfinite(confidence).any() else float("nan")
        return cls(lens.decode(ids), ids, steps, mean, ended)


def cut_at_end(ids: Sequence[int], end_ids: Collection[int]) -> tuple[list[int], bool]:
    """The ids before the first end token, and whether there is one.

    >>> cut_at_end([5, 6, 2, 7], (2, 3)), cut_at_end([5, 6], (2, 3))
    (([5, 6], True), ([5, 6], False))
    """
    end = next((index for index, token in enumerate(ids) if token in end_ids), None)
    return list(ids[:end]), end is not None
