"""Text to tokens with the characters that each token covers, and no special token that the user's data wrote.

Offsets come from the tokenizer where it has them (any fast tokenizer) and from an alignment of its decoded tokens where
it has none. A passage may hold a string such as `<|user|>` or `[MASK]`. The tokenizer would read it as the special
token, and the data would speak in the template's voice. Such a token is spelt out: its string is tokenised again as
plain text (`split_special_tokens`), or, where the tokenizer still finds the special token in it, cut after its first
character and the two halves tokenised apart.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from floatlens.data.align import align


class Token(NamedTuple):
    """A token id and the characters [start, end) of the text it stands for; start == end for a token that was added."""

    id: int
    start: int
    end: int


def tokenise(tokenizer: Any, text: str, *, special: bool = False, data: tuple[int, int] | None = None) -> list[Token]:
    """Tokens of `text` with their characters.

    `special` adds the tokenizer's own special tokens (bos); those it would append after the text are left out, because
    the text is to be continued. Characters `data` = [start, end) are the user's and never become special tokens;
    special tokens elsewhere in the text are the template's and stay.
    """
    tokens = _tokens(tokenizer, text, special=special)
    while special and tokens and tokens[-1].start == tokens[-1].end and tokens[-1].id in set(tokenizer.all_special_ids):
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
            plain.extend(_spelt(tokenizer, text, token, reserved))
        else:
            plain.append(token)
    return plain


def _reserved(tokenizer: Any, frame: str) -> dict[int, str]:
    """Token ids that data must not produce: special ones, and added ones that the template itself uses as markers."""
    reserved = _markers(tokenizer)
    for id_, token in tokenizer.added_tokens_decoder.items():
        if token.content.strip() and (token.special or token.content in frame):
            reserved[id_] = token.content
    return reserved


def _markers(tokenizer: Any) -> dict[int, str]:
    return dict(zip(tokenizer.all_special_ids, map(str, tokenizer.all_special_tokens), strict=True))


def _is_reserved(token: Token, text: str, reserved: dict[int, str], unknown: int | None) -> bool:
    if token.id not in reserved:
        return False
    # Ordinary text may give the unknown token, and in some tokenizers that is also the end-of-text token.
    return token.id != unknown or text[token.start : token.end].strip() == reserved[token.id]


def _spelt(tokenizer: Any, text: str, token: Token, reserved: dict[int, str]) -> list[Token]:
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
    return best  # a special token of one character cannot be spelt in another way


def _tokens(tokenizer: Any, text: str, *, special: bool, plain: bool = False) -> list[Token]:
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
