"""Text to tokens, with the characters that each token covers and without special tokens that come from the user's data.

Offsets come from the tokenizer if it is a fast one. Otherwise the tokens are decoded and aligned with the text: white space
is skipped on both sides, since tokenizers add and drop it; case and accents are ignored, since normalisers change them.

A passage may contain a string such as `<|user|>` or `[MASK]`, which the tokenizer would read as the special token. Such a
string is tokenised again as plain text (`split_special_tokens`), or, if the tokenizer still finds the special token in it,
cut after its first character and tokenised in two parts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
REACH = 64  # characters searched for a token that is not at the current position, after an unknown token for instance
BYTES = 8  # maximum number of tokens that one character is split into


class Token(NamedTuple):
    """A token id and the characters [start, end) of the text that it covers; start == end for an added token."""

    id: int
    start: int
    end: int


def tokenise(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    special: bool = False,
    data: tuple[int, int] | None = None,
    ends: bool = False,
) -> list[Token]:
    """Return the tokens of `text`, each with the characters that it covers.

    Parameters
    ----------
    special: add the tokenizer's own special tokens (bos), except those after the text, which is to be continued.
    ends: with `special`, also add those after the text, which is complete.
    data: the characters [start, end) that come from the user; they never become special tokens. Special tokens elsewhere
        in the text belong to the template and stay.
    """
    tokens = _tokens(tokenizer, text, special=special)
    added = set(tokenizer.all_special_ids) if special and not ends else set()
    while tokens and tokens[-1].start == tokens[-1].end and tokens[-1].id in added:
        tokens.pop()
    if data is None:
        return tokens
    start, end = data
    reserved = _reserved(tokenizer, text[:start] + text[end:])
    unknown = tokenizer.unk_token_id
    plain: list[Token] = []
    for token in tokens:
        inside = token.id in reserved and start <= token.start < token.end <= end
        if inside and _is_reserved(token, text, reserved, unknown):
            plain.extend(_spell_out(tokenizer, text, token, reserved))
        else:
            plain.append(token)
    return plain


def _reserved(tokenizer: PreTrainedTokenizerBase, frame: str) -> dict[int, str]:
    """Return the token ids that data must not produce: special ones, and added ones that the template uses as markers."""
    reserved = _markers(tokenizer)
    for id_, token in tokenizer.added_tokens_decoder.items():
        if token.content.strip() and (token.special or token.content in frame):
            reserved[id_] = token.content
    return reserved


def _markers(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return dict(zip(tokenizer.all_special_ids, map(str, tokenizer.all_special_tokens), strict=True))


def _is_reserved(token: Token, text: str, reserved: dict[int, str], unknown: int | None) -> bool:
    if token.id not in reserved:
        return False
    # Ordinary text may give the unknown token, and in some tokenizers that is also the end-of-text token.
    return token.id != unknown or text[token.start : token.end].strip() == reserved[token.id]


def _spell_out(tokenizer: PreTrainedTokenizerBase, text: str, token: Token, reserved: dict[int, str]) -> list[Token]:
    written = text[token.start : token.end]
    lead = len(written) - len(written.lstrip())
    one = lead + 1
    attempts = ([0, len(written)], [0, one, len(written)], list(range(len(written) + 1)))
    best = [token]
    for cuts in attempts:
        best = []
        for a, b in pairwise(cuts):
            pieces = _tokens(tokenizer, written[a:b], special=False, plain=True)
            best += [Token(t.id, t.start + token.start + a, t.end + token.start + a) for t in pieces]
        if not any(_is_reserved(t, text, reserved, tokenizer.unk_token_id) for t in best):
            return best
    return best  # a special token of one character cannot be spelled out


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool, plain: bool = False) -> list[Token]:
    fast = bool(getattr(tokenizer, "is_fast", False))
    options: dict[str, Any] = {"add_special_tokens": special, "return_attention_mask": False, "verbose": False}
    if plain:
        options["split_special_tokens"] = True
    if not fast:
        ids = list(tokenizer(text, **options)["input_ids"])
        markers = _markers(tokenizer)
        markers.pop(tokenizer.unk_token_id, None)
        return [Token(id_, *span) for id_, span in zip(ids, align(ids, tokenizer.decode, text, markers), strict=True)]
    encoded = tokenizer(text, return_offsets_mapping=True, **options)
    return [Token(id_, a, b) for id_, (a, b) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)]


def align(
    ids: Sequence[int], decode: Callable[[list[int]], str], text: str, markers: Mapping[int, str] | None = None
) -> list[Span]:
    """Return the characters [start, end) of each token. `markers` are special tokens, in the text or added to it.

    Tokens that are single bytes of a character decode to U+FFFD; they are decoded with their neighbours until the
    character is complete, and share its span. A token that is not found (an unknown one) gets the characters between its
    neighbours; an added marker gets none.

    >>> align([7, 8], lambda ids: "".join({7: "Hel", 8: "lo"}[i] for i in ids), "Hello")
    [(0, 3), (3, 5)]
    """
    markers = markers or {}
    visible = [i for i, c in enumerate(text) if not c.isspace()]
    letters = [_fold(text[i]) for i in visible]
    spans: list[Span | None] = []
    at, i = 0, 0
    while i < len(ids):
        group, piece = _whole_characters(ids, i, decode)
        wanted = [_fold(c) for c in markers.get(ids[i], piece) if not c.isspace()]
        begin = _find(letters, wanted, at, reach=0 if ids[i] in markers else REACH)
        if begin is not None:
            at = begin + len(wanted)
            spans += [(visible[begin], visible[at - 1] + 1)] * group
        else:
            here = visible[at] if at < len(visible) else len(text)
            lost = wanted and ids[i] not in markers
            spans += [None if lost else (here, here)] * group
        i += group
    return _fill_gaps(spans, text)


def _whole_characters(ids: Sequence[int], i: int, decode: Callable[[list[int]], str]) -> tuple[int, str]:
    """Return how many tokens from `i` on make up whole characters, and their text."""
    for group in range(1, min(BYTES, len(ids) - i) + 1):
        piece = decode(list(ids[i : i + group]))
        if "\ufffd" not in piece:
            return group, piece
    return 1, decode([ids[i]])


def _fold(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character.casefold())
    return "".join(c for c in plain if not unicodedata.combining(c)) or character


def _find(letters: list[str], wanted: list[str], at: int, reach: int) -> int | None:
    if not wanted:
        return None
    for begin in range(at, min(at + reach, len(letters) - len(wanted)) + 1):
        if letters[begin : begin + len(wanted)] == wanted:
            return begin
    return None


def _fill_gaps(spans: list[Span | None], text: str) -> list[Span]:
    """Give tokens that were not found the characters between their found neighbours."""
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
