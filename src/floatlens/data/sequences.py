"""Raw sequences: text or token ids as they are, with regions of one's own, and texts with masks to fill.

No question is wrapped around the sequence and no chat template is applied; the tokenizer adds what it always adds (bos, or
[CLS] and [SEP]). Special tokens that are written in the text count as such. Regions come from spans, or from marks in the
text: `[[query: Who?]]` is the text `Who?` as the region `query`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from floatlens.data.prompt import Prompt, Region, regions_of
from floatlens.data.tokenize import Token, tokenise
from floatlens.errors import FloatLensError

TEXT, ANSWER, BOS = "text", "answer", "bos"
MARKS: Literal["marks"] = "marks"
MARK = re.compile(r"\[\[([A-Za-z]\w*): ?(.*?)\]\](?!\])", re.DOTALL)
UNKNOWN_SHARE = 0.2  # above it, the tokenizer is probably not one for this text

Spans: TypeAlias = Mapping[str, tuple[int, int]]
Regions: TypeAlias = "Spans | Literal['marks'] | None"


class Marked(NamedTuple):
    """A text without its marks, and the characters (start, end, name) of its regions."""

    text: str
    spans: list[tuple[int, int, str]]


def read_marks(text: str) -> Marked:
    """Remove the marks from a text.

    >>> read_marks("[[doc1: Ada lives in Rusk.]] [[query: Where?]]")
    Marked(text='Ada lives in Rusk. Where?', spans=[(0, 18, 'doc1'), (19, 25, 'query')])
    """
    plain, spans, last = "", [], 0
    for found in MARK.finditer(text):
        plain += text[last : found.start()]
        spans.append((len(plain), len(plain) + len(found[2]), found[1]))
        plain, last = plain + found[2], found.end()
    if not spans:
        raise FloatLensError("the text has no marks; write a region as [[name: its text]]")
    return Marked(plain + text[last:], spans)


def find_spans(text: str, regions: Regions) -> Marked:
    """Return the plain text and the spans of its regions; all of it is the region `text` if none are given."""
    if regions == MARKS:
        return read_marks(text)
    if regions is None:
        return Marked(text, [(0, len(text), TEXT)])
    return Marked(text, check_spans(regions, len(text), "characters"))


def check_spans(regions: Spans, length: int, of: str) -> list[tuple[int, int, str]]:
    """Return the spans in order; those that are empty, overlap or lie outside are refused.

    >>> check_spans({"b": (4, 6), "a": (0, 4)}, 6, "characters")
    [(0, 4, 'a'), (4, 6, 'b')]
    """
    spans = sorted((int(start), int(end), name) for name, (start, end) in regions.items())
    before = 0
    for start, end, name in spans:
        if not before <= start < end <= length:
            why = "overlaps another" if start < before and 0 <= start < end <= length else f"should lie in 0:{length}"
            raise FloatLensError(f"region {name!r} has the span {start}:{end} in {of}, which {why}")
        before = end
    return spans


def text_prompt(tokenizer: Any, text: str, regions: Regions = None) -> Prompt:
    """Return the prompt of a raw text, to be continued.

    Parameters
    ----------
    regions: character spans by name, or "marks" for those that are marked in the text; by default all of it is `text`.
    """
    plain, spans = find_spans(text, regions)
    tokens = tokenise(tokenizer, plain, special=True)
    warn_if_unknown(tokenizer, tokens, plain)
    return Prompt(plain, [t.id for t in tokens], _named(tokens, plain, spans), question=plain, chat=False)


def ids_prompt(ids: Sequence[int], regions: Spans | None = None) -> Prompt:
    """Return the prompt of raw token ids; `regions` are spans of positions by name.

    >>> ids_prompt([5, 6, 7], {"query": (1, 3)}).regions
    [Region(name='query', start=1, end=3)]
    """
    spans = check_spans(regions or {}, len(ids), "positions")
    return Prompt("", [int(i) for i in ids], [Region(name, start, end) for start, end, name in spans])


def answer_tokens(tokenizer: Any, text: str, regions: Regions = None) -> tuple[list[int], list[Region]]:
    """Return the tokens of a text that follows a prompt, and its regions, counted from its first token."""
    plain, spans = find_spans(text, regions)
    tokens = tokenise(tokenizer, plain)
    warn_if_unknown(tokenizer, tokens, plain)
    return [t.id for t in tokens], [] if regions is None else regions_of(tokens, plain, spans)


def warn_if_unknown(tokenizer: Any, tokens: Sequence[Token], text: str) -> None:
    """Warn if more than a fifth of the tokens of a text are unknown to the tokenizer."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    own = [token for token in tokens if token.start < token.end]
    share = sum(token.id == unknown for token in own) / max(1, len(own))
    if unknown is not None and share > UNKNOWN_SHARE:
        shown = text if len(text) <= 40 else text[:37] + "..."
        warnings.warn(
            f"{share:.0%} of the tokens of {shown!r} are unknown to the tokenizer ({tokenizer.unk_token}); "
            f"write the sequence as the model's training data does",
            stacklevel=3,
        )


def _named(tokens: Sequence[Token], text: str, spans: Sequence[tuple[int, int, str]]) -> list[Region]:
    """Return the regions of the spans, with `bos` for a first token that the tokenizer added."""
    regions = regions_of(tokens, text, spans)
    if tokens and tokens[0].start == tokens[0].end:
        regions.insert(0, Region(BOS, 0, 1))
    return regions
