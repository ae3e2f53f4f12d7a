"""Generation: the text that a model wrote, cut at its end token. `Lens.generate` returns it, and evaluations score it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from floatlens.lens import Lens
    from floatlens.trace.trace import Trace

Array = npt.NDArray[np.float32]


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
    def of(
        cls, lens: Lens, ids: Sequence[int], confidence: Array, steps: int, masks: Sequence[bool] | None = None
    ) -> Generation:
        """The generation of the ids after a prompt; `masks` says which of them replaced masks, in a text with masks."""
        if masks is None:
            kept, ended = cut_at_end(ids, lens.end_ids)
            text, used = lens.decode(kept), np.arange(len(ids)) < len(kept) + ended
        else:
            kept, ended, used = [i for i, written in zip(ids, masks, strict=True) if written], False, np.array(masks)
            text = filled_text(lens.decode, ids, masks)
        known = confidence[used][np.isfinite(confidence[used])]
        mean = float(known.mean()) if known.size else float("nan")
        return cls(text, kept, int(used.sum()) if lens.family.kind == "arm" else steps, mean, ended)

    @classmethod
    def from_trace(cls, lens: Lens, trace: Trace) -> Generation:
        """The generation that a trace recorded; equal to the result of `generate` for the same prompt."""
        data, start = trace.data, trace.prompt_length
        at, recorded = data["committed_at"].values[start:], data["step"].values.tolist()
        confidence = np.full(len(at), np.nan, np.float32)
        for index, step in enumerate(recorded):
            confidence[at == step] = data["confidence"].values[index, start:][at == step]
        most = None if trace.infill else trace.settings.get("max_new_tokens")
        masks = (at >= 0).tolist() if trace.infill else None
        return cls.of(lens, trace.written[:most], confidence[:most], recorded[-1] + 1, masks)


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


def end_tokens(*sources: Any) -> list[int]:
    """The end tokens that configs and tokenizers define."""
    found = [getattr(source, "eos_token_id", None) for source in sources]
    return [int(i) for ids in found if ids is not None for i in (ids if isinstance(ids, list) else [ids])]


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
