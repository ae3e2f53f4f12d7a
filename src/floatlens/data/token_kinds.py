"""Kinds of tokens: structure or content.

Works on the token strings of byte-level BPE (Ġthe), SentencePiece (▁the, <0x0A>), WordPiece (##ing) and on plain pieces of
text. Words are first joined from their pieces, so that "the" inside "mathematics" does not count as an article. English
function words come from `function_words.txt`; everything else comes from Unicode categories, for any script.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from floatlens.errors import unknown_name

GROUPS = {
    "special": "structural",
    "mask": "structural",
    "newline": "structural",
    "punctuation": "structural",
    "template": "structural",
    "function": "structural",
    "number": "lexical",
    "name": "lexical",
    "content": "lexical",
}
KINDS = tuple(GROUPS)
Classifier: TypeAlias = Callable[[list[str]], Sequence[str]]

FUNCTION_WORDS = frozenset(files("floatlens.data").joinpath("function_words.txt").read_text(encoding="utf-8").split())
_SPECIAL = re.compile(
    r"<[|｜].*[|｜]>|</?s>|<(?:bos|eos|pad|unk|mask|sep|cls|s|start_of_turn|end_of_turn|start_of_image|end_of_text)>"
    r"|\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS|INST|/INST|gMASK|unused\d+)\]|<(?:unused|extra_id_|reserved)_?\d+>|<<?/?SYS>?>",
    re.DOTALL,
)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCE_ENDS = frozenset(".?!:…。？！：")


def classify(tokens: list[str], template: Sequence[bool] | None = None) -> list[str]:
    """Return the kind of each token of a sequence; an empty string (no token at that position) stays empty.

    `template` marks the positions of the prompt's template: their words and punctuation are `template`.

    >>> classify(["<|bos|>", "ĠAda", "ĠLov", "elace", "Ġwas", "Ġborn", "Ġin", "Ġ1815", ".", "Ċ", "<|mask|>"])
    ['special', 'name', 'name', 'name', 'function', 'content', 'function', 'number', 'punctuation', 'newline', 'mask']
    """
    pieces = _pieces(tokens)
    kinds = [_sign_kind(token, text) for token, (text, _) in zip(tokens, pieces, strict=True)]
    words = _words(kinds, pieces)
    texts = [
        b"".join(_bytes(tokens[i], pieces[i][0]) for i in word).decode("utf-8", "replace").strip() for word in words
    ]
    starts = [_starts_sentence(word[0], kinds, pieces) for word in words]
    known_names = {text for text, start in zip(texts, starts, strict=True) if _capital(text) and not start}
    for index, (word, text) in enumerate(zip(words, texts, strict=True)):
        follows = index + 1 < len(words) and words[index + 1][0] == word[-1] + 1 and _capital(texts[index + 1])
        kind = _word_kind(text, named=not starts[index] or text in known_names or follows)
        for i in word:
            kinds[i] = kind
    if template is not None:
        keep = ("special", "mask", "newline", "")
        kinds = [k if k in keep or not inside else "template" for k, inside in zip(kinds, template, strict=True)]
    return kinds


def groups_of(kinds: Sequence[str]) -> list[str]:
    """Return `structural` or `lexical` for each kind; a custom classifier may return these two words itself."""
    known = {**GROUPS, "structural": "structural", "lexical": "lexical", "": ""}
    for kind in kinds:
        if kind not in known:
            raise unknown_name("token kind", kind, KINDS)
    return [known[kind] for kind in kinds]


def text_of(tokens: list[str]) -> str:
    """Return the text of token strings, close enough to search it for an answer."""
    parts = []
    for token, (text, starts) in zip(tokens, _pieces(tokens), strict=True):
        spaced = starts and text[:1].isalnum()
        parts.append((b" " if spaced else b"") + _bytes(token, text))
    return b"".join(parts).decode("utf-8", "replace")


def spelled(tokens: Sequence[str]) -> list[str]:
    """Return the text of each token by itself, with a space before it where a word starts."""
    return [f" {text}" if starts and text[:1].isalnum() else text for text, starts in _pieces(tokens)]


def _pieces(tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the text of each token, and whether the token itself marks the start of a word."""
    joined = "".join(tokens)
    byte_level = "Ġ" in joined or "Ċ" in joined
    wordpiece = any(t.startswith("##") and len(t) > 2 for t in tokens) or "[CLS]" in tokens
    spaced = byte_level or "▁" in joined or any(t[:1] == " " and t.strip() for t in tokens)
    pieces = []
    for token in tokens:
        if byte_level and not _SPECIAL.fullmatch(token):
            text = _from_byte_level(token).decode("utf-8", "replace")
        else:
            text = token.replace("▁", " ")
            text = _BYTE.sub(lambda m: chr(int(m[1], 16)), text)
        if wordpiece and token.startswith("##") and len(token) > 2:
            pieces.append((token[2:], False))
        else:
            pieces.append((text, (wordpiece or not spaced) and bool(text.strip())))
    return pieces


def _words(kinds: list[str], pieces: Sequence[tuple[str, bool]]) -> list[list[int]]:
    """Return the positions of the pieces of each word: a piece without a space before it continues the word before it."""
    words: list[list[int]] = []
    for i, (text, starts) in enumerate(pieces):
        if kinds[i] != "word":
            continue
        continues = words and words[-1][-1] == i - 1 and not starts and not text[:1].isspace()
        if continues:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def _sign_kind(token: str, text: str) -> str:
    """Return the kind of a token that is not a word, or `word`."""
    if token == "":
        return ""
    if _SPECIAL.fullmatch(token):
        return "mask" if "mask" in token.casefold() else "special"
    core = text.strip()
    if not core:
        return "newline"
    if core.casefold() in FUNCTION_WORDS:
        return "word"
    return "punctuation" if all(unicodedata.category(c)[0] in "PSZC" and c != "�" for c in core) else "word"


def _word_kind(text: str, named: bool) -> str:
    bare = text.strip("".join({c for c in text if unicodedata.category(c)[0] in "PSZ" and c != "'"}) or " ")
    if bare.casefold().replace("’", "'") in FUNCTION_WORDS:
        return "function"
    letters = sum(unicodedata.category(c)[0] == "L" for c in bare)
    digits = sum(unicodedata.category(c)[0] == "N" for c in bare)
    if digits and digits >= letters:
        return "number"
    return "name" if named and _capital(bare) else "content"


def _capital(text: str) -> bool:
    return unicodedata.category(text[:1] or " ") in ("Lu", "Lt")


def _starts_sentence(i: int, kinds: list[str], pieces: Sequence[tuple[str, bool]]) -> bool:
    """Return whether a sentence starts here: at the beginning, after a special token, a line end or a full stop."""
    if i == 0 or kinds[i - 1] in ("special", "mask", "newline", ""):
        return True
    before = pieces[i - 1][0].rstrip(" ")
    return kinds[i - 1] == "punctuation" and (before.endswith("\n") or before.rstrip("\"'”’)]")[-1:] in _SENTENCE_ENDS)


@cache
def _byte_of() -> dict[str, int]:
    """Return the byte of each character of byte-level tokenizers: printable bytes as they are, the rest from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(rest)}


def _from_byte_level(token: str) -> bytes:
    table = _byte_of()
    if all(c in table for c in token):
        return bytes(table[c] for c in token)
    return token.encode("utf-8", "replace")


def _bytes(token: str, text: str) -> bytes:
    """Return the bytes of a piece, so that a character that the tokenizer cut in two is whole again in its word."""
    if match := _BYTE.fullmatch(token):
        return bytes([int(match[1], 16)])
    return _from_byte_level(token) if "�" in text and "�" not in token else text.encode("utf-8", "replace")
