"""Templates: the text of a prompt in segments with known regions.

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
from floatlens.errors import FloatLensError, unknown_name

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


@dataclass(frozen=True)
class Segment:
    """A piece of the prompt's text and its region; an empty name marks text of the template itself."""

    text: str
    region: str = ""


@dataclass(frozen=True)
class Template:
    """A parsed template, made by `parse`: its parts with passages and without."""

    text: str
    open_book: tuple[str, ...]
    closed_book: tuple[str, ...]

    def segments(self, question: str, passages: Sequence[Passage] = (), order: str = "last") -> list[Segment]:
        """Return the text of the prompt in segments, each with its region.

        >>> "".join(s.text for s in DEFAULT.segments("Who?"))
        'Answer the question. Reply with the answer only.\\n\\nQuestion: Who?'
        >>> [s.region for s in DEFAULT.segments("Who?", [Passage("Ann.")], order="both") if s.region]
        ['instruction', 'query1', 'doc1', 'query']
        """
        if order not in ORDERS:
            raise unknown_name("order", order, ORDERS)
        parts = _arrange(self.open_book, order) if passages else self.closed_book
        asked = sum("question" in _slots(part) for part in parts)
        segments: list[Segment] = []
        for index, part in enumerate(parts):
            if index:
                segments.append(Segment("\n\n"))
            slots = _slots(part)
            if not slots:
                segments.append(Segment(_literal(part), "" if index else "instruction"))
                continue
            if "question" in slots:
                asked -= 1
            query = f"query{asked}" if asked else "query"
            for literal, slot, _, _ in string.Formatter().parse(part):
                if literal:
                    segments.append(Segment(literal))
                if slot == "question":
                    segments.append(Segment(question, query))
                elif slot == "passages":
                    segments.extend(_number(passages))
        return segments


def parse(text: str, source: str = "template") -> Template:
    """Parse a template; a missing or unknown slot is an error that names it.

    >>> parse("Read this. {passages}")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: template has no slot {question}; write {question} where it belongs
    """
    opened, closed = _sections(text)
    open_book, closed_book = _parts(opened), _parts(closed)
    _check(open_book, SLOTS, source)
    if closed_book:
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


def _sections(text: str) -> tuple[str, str]:
    lines = text.replace("\r\n", "\n").split("\n")
    cut = next((i for i, line in enumerate(lines) if line.strip() == "---"), len(lines))
    return "\n".join(lines[:cut]), "\n".join(lines[cut + 1 :])


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\n") for part in text.split("\n\n") if part.strip())


def _slots(part: str) -> list[str]:
    return [slot for _, slot, _, _ in string.Formatter().parse(part) if slot is not None]


def _literal(part: str) -> str:
    return "".join(literal for literal, _, _, _ in string.Formatter().parse(part))


def _check(parts: Sequence[str], needed: Sequence[str], source: str) -> None:
    slots: list[str] = []
    for part in parts:
        try:
            slots += _slots(part)
        except ValueError as error:
            raise FloatLensError(f"{source} has a stray brace ({error}); double it to write a brace") from None
    for slot in slots:
        if slot not in needed:
            known = ", ".join(f"{{{name}}}" for name in needed)
            raise FloatLensError(f"{source} has the unknown slot {{{slot}}}; the slots here are {known}")
    for slot in needed:
        if slot not in slots:
            raise FloatLensError(f"{source} has no slot {{{slot}}}; write {{{slot}}} where it belongs")


def _arrange(parts: Sequence[str], order: str) -> list[str]:
    """Move the part with the question according to `order`; a template with both slots in one part is not changed."""
    questions = [part for part in parts if "question" in _slots(part) and "passages" not in _slots(part)]
    if order == "last" or not questions:
        return list(parts)
    rest = [part for part in parts if part not in questions]
    at = next(i for i, part in enumerate(rest) if "passages" in _slots(part))
    first = rest[:at] + questions + rest[at:]
    return first if order == "first" else first + questions


def _number(passages: Sequence[Passage]) -> list[Segment]:
    segments: list[Segment] = []
    for number, passage in enumerate(passages, 1):
        segments.append(Segment(f"\n[{number}] " if number > 1 else f"[{number}] "))
        segments.append(Segment(passage.line, f"doc{number}"))
    return segments


DEFAULT = parse(DEFAULT_TEXT)
