"""Templates: the text of a prompt in segments with known regions. `prompt.build` fills them.

A template is text with named slots. Its parts are separated by blank lines, so that the part with the question can be before
the part with the passages, after it, or on both sides. The text after a line `---` is used when there are no passages;
without it, the part with `{passages}` is left out.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floatlens.data.sample import Passage
from floatlens.errors import FloatLensError, check_known

ORDERS = ("last", "first", "both")
SLOTS = ("question", "passages")

DEFAULT_TEXT = """\
Answer the question from the passages. Reply with the answer only.

{passages}

Question: {question}
---
Answer the question. Reply with the answer only.

Question: {question}
"""


# A piece of the prompt's text and its region; an empty name marks text of the template itself.
Segment = tuple[str, str]
Part = tuple[tuple[str, str | None], ...]  # a paragraph: literal text, and the slot after it


@dataclass(frozen=True)
class Template:
    """A parsed template, made by `parse`: its parts with passages and without."""

    text: str
    open_book: tuple[Part, ...]
    closed_book: tuple[Part, ...]

    def segments(self, question: str, passages: Sequence[Passage] = (), order: str = "last") -> list[Segment]:
        """Return the text of the prompt in segments, each with its region.

        >>> "".join(text for text, _ in DEFAULT.segments("Who?"))
        'Answer the question. Reply with the answer only.\\n\\nQuestion: Who?'
        >>> [region for _, region in DEFAULT.segments("Who?", [Passage("Ann.")], order="both") if region]
        ['instruction', 'query1', 'doc1', 'query']
        """
        check_known("order", order, ORDERS)
        parts = _arrange(self.open_book, order) if passages else self.closed_book
        asked = sum("question" in _slots(part) for part in parts)
        segments: list[Segment] = []
        for index, part in enumerate(parts):
            if index:
                segments.append(("\n\n", ""))
            asked -= "question" in _slots(part)
            if not _slots(part):
                segments.append(("".join(literal for literal, _ in part), "" if index else "instruction"))
                continue
            for literal, slot in part:
                if literal:
                    segments.append((literal, ""))
                if slot == "question":
                    segments.append((question, f"query{asked}" if asked else "query"))
                for number, passage in enumerate(passages if slot == "passages" else (), 1):
                    segments += [("\n" * (number > 1) + f"[{number}] ", ""), (passage.line, f"doc{number}")]
        return segments


def parse(text: str, source: str = "template") -> Template:
    """Parse a template; a missing or unknown slot is an error that names it.

    >>> parse("Read this. {passages}")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: template has no slot {question}; write {question} where it belongs
    """
    lines = text.replace("\r\n", "\n").split("\n")
    cut = next((i for i, line in enumerate(lines) if line.strip() == "---"), len(lines))
    open_book = _parts("\n".join(lines[:cut]), source)
    _check(open_book, SLOTS, source)
    if closed_book := _parts("\n".join(lines[cut + 1 :]), source):
        _check(closed_book, ("question",), f"{source}, closed-book section,")
    else:
        closed_book = tuple(part for part in open_book if "passages" not in _slots(part))
        _check(closed_book, ("question",), f"{source} without the paragraph of {{passages}}")
    return Template(text, open_book, closed_book)


def read(path: str | Path) -> Template:
    """Read a template file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FloatLensError(f"template file {path} cannot be read ({error}); pass a UTF-8 text file") from None
    return parse(text, f"template file {path}")


def _parts(text: str, source: str) -> tuple[Part, ...]:
    paragraphs = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    try:
        return tuple(tuple((part[0], part[1]) for part in string.Formatter().parse(each)) for each in paragraphs)
    except ValueError as error:
        raise FloatLensError(f"{source} has a stray brace ({error}); double it to write a brace") from None


def _slots(part: Part) -> list[str]:
    return [slot for _, slot in part if slot is not None]


def _check(parts: Sequence[Part], needed: Sequence[str], source: str) -> None:
    slots = [slot for part in parts for slot in _slots(part)]
    if unknown := [slot for slot in slots if slot not in needed]:
        known = ", ".join(f"{{{name}}}" for name in needed)
        raise FloatLensError(f"{source} has the unknown slot {{{unknown[0]}}}; the slots here are {known}")
    if missing := [slot for slot in needed if slot not in slots]:
        raise FloatLensError(f"{source} has no slot {{{missing[0]}}}; write {{{missing[0]}}} where it belongs")


def _arrange(parts: Sequence[Part], order: str) -> list[Part]:
    """Move the part with the question according to `order`; a template with both slots in one part is not changed."""
    questions = [part for part in parts if "question" in _slots(part) and "passages" not in _slots(part)]
    if order == "last" or not questions:
        return list(parts)
    rest = [part for part in parts if part not in questions]
    at = next(i for i, part in enumerate(rest) if "passages" in _slots(part))
    first = rest[:at] + questions + rest[at:]
    return first if order == "first" else first + questions


DEFAULT = parse(DEFAULT_TEXT)
