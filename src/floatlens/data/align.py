"""Which characters does each token stand for, when the tokenizer does not say?

Tokens are decoded and walked along the text. White space is skipped on both sides, since tokenizers add and drop it;
case and accents are ignored, since normalisers change them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence

Span = tuple[int, int]
REACH = 64  # how far to look for a token that is not at the current place, after an unknown token or dropped characters
BYTES = 8  # most tokens that one character is split into


def align(
    ids: Sequence[int], decode: Callable[[list[int]], str], text: str, markers: Mapping[int, str] | None = None
) -> list[Span]:
    """Characters [start, end) of each token; `markers` are special tokens, which may stand in the text or be added.

    Tokens that are bytes of one character decode to U+FFFD alone; they are decoded together with their neighbours until
    the character is whole, and share its place. A token that is not found (an unknown one) gets the characters that its
    neighbours leave; an added marker gets none.

    >>> align([7, 8], lambda ids: "".join({7: "Hel", 8: "lo"}[i] for i in ids), "Hello")
    [(0, 3), (3, 5)]
    """
    markers = markers or {}
    places = [i for i, c in enumerate(text) if not c.isspace()]
    letters = [_folded(text[i]) for i in places]
    spans: list[Span | None] = []
    at, i = 0, 0
    while i < len(ids):
        group, piece = _whole(ids, i, decode)
        wanted = [_folded(c) for c in markers.get(ids[i], piece) if not c.isspace()]
        begin = _find(letters, wanted, at, reach=0 if ids[i] in markers else REACH)
        if begin is not None:
            at = begin + len(wanted)
            spans += [(places[begin], places[at - 1] + 1)] * group
        else:
            place = places[at] if at < len(places) else len(text)
            lost = wanted and ids[i] not in markers
            spans += [None if lost else (place, place)] * group
        i += group
    return _filled(spans, text)


def _whole(ids: Sequence[int], i: int, decode: Callable[[list[int]], str]) -> tuple[int, str]:
    """How many tokens from `i` on make up whole characters, and what they say."""
    for group in range(1, min(BYTES, len(ids) - i) + 1):
        piece = decode(list(ids[i : i + group]))
        if "\ufffd" not in piece:
            return group, piece
    return 1, decode([ids[i]])


def _folded(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character.casefold())
    return "".join(c for c in plain if not unicodedata.combining(c)) or character


def _find(letters: list[str], wanted: list[str], at: int, reach: int) -> int | None:
    if not wanted:
        return None
    for begin in range(at, min(at + reach, len(letters) - len(wanted)) + 1):
        if letters[begin : begin + len(wanted)] == wanted:
            return begin
    return None


def _filled(spans: list[Span | None], text: str) -> list[Span]:
    """Tokens that were not found share the characters between their found neighbours."""
    later = [len(text)] * (len(spans) + 1)
    for i in range(len(spans) - 1, -1, -1):
        span = spans[i]
        later[i] = span[0] if span is not None else later[i + 1]
    filled: list[Span] = []
    covered = 0
    for i, span in enumerate(spans):
        if span is not None:
            covered = max(covered, span[1])
        filled.append(span if span is not None else (covered, max(covered, later[i])))
    return filled
