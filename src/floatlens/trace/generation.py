"""Generation: the text that a model wrote, cut at its end token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from floatlens.lens import Lens
    from floatlens.trace.trace import Trace


@dataclass(frozen=True)
class Generation:
    """The output of a model for one prompt.

    text, ids    the answer, cut before the first end token; for a text with masks, the tokens that replaced the masks
    steps        number of forward passes; for an autoregressive model, up to and including the end token
    confidence   mean probability of the tokens up to and including the end token, each at the step that committed it
    ended        whether the model wrote an end token
    """

    text: str
    ids: list[int]
    steps: int
    confidence: float
    ended: bool

    @classmethod
    def from_trace(cls, lens: Lens, trace: Trace) -> Generation:
        """The generation that a trace recorded; equal to the result of `generate` for the same prompt."""
        data, start = trace.data, trace.prompt_length
        if trace.infill:
            used = np.flatnonzero(data["committed_at"].values >= 0)
            ids, ended = [int(i) for i in trace.final_tokens[used]], False
        else:
            ids, ended = cut_at_end(trace.written[: trace.settings.get("max_new_tokens")], lens.end_ids)
            used = np.arange(start, start + len(ids) + ended)
        recorded = {int(step): index for index, step in enumerate(data["step"].values)}
        committed = [(recorded.get(int(data["committed_at"].values[p])), p) for p in used]
        confidence = np.array([data["confidence"].values[at] for at in committed if at[0] is not None], np.float32)
        steps = len(used) if trace.kind == "arm" else int(data["step"].values[-1]) + 1
        mean = float(np.nanmean(confidence)) if np.isfinite(confidence).any() else float("nan")
        return cls(trace.answer if trace.infill else lens.decode(ids), ids, steps, mean, ended)


def decode(tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int]) -> str:
    """The text of token ids without special tokens; the ids themselves if there is no tokenizer.

    >>> decode(None, [5, 6])
    '5 6'
    """
    if tokenizer is None:
        return " ".join(map(str, ids))
    return str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()


def token_strings(tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int]) -> dict[str, str]:
    """Token strings by id (as a string); the id in brackets if there is no tokenizer.

    >>> token_strings(None, [5])
    {'5': '<5>'}
    """
    pieces = [f"<{i}>" for i in ids] if tokenizer is None else tokenizer.convert_ids_to_tokens(list(ids))
    return {str(i): str(piece) for i, piece in zip(ids, pieces, strict=True)}


def filled_text(decode: Callable[[Sequence[int]], str], ids: Sequence[int], written: Sequence[bool]) -> str:
    """The text of the written ids; separate spans are joined by a space.

    >>> filled_text(lambda ids: "".join(map(chr, ids)), [72, 105, 33, 72, 111], [True, True, False, True, True])
    'Hi Ho'
    """
    runs = [[id_ for id_, _ in run] for mask, run in groupby(zip(ids, written, strict=True), lambda p: p[1]) if mask]
    return " ".join(decode(run) for run in runs)


def cut_at_end(ids: Sequence[int], end_ids: Collection[int]) -> tuple[list[int], bool]:
    """The ids before the first end token, and whether there is one.

    >>> cut_at_end([5, 6, 2, 7], (2, 3)), cut_at_end([5, 6], (2, 3))
    (([5, 6], True), ([5, 6], False))
    """
    end = next((index for index, token in enumerate(ids) if token in end_ids), None)
    return list(ids[:end]), end is not None
