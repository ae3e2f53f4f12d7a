"""The parser of strings such as `mask-anchors(rule=sigma(3), layers=0:4)`: a name and its arguments.

Anchor rules, interventions and selections of heads are all written this way. Values stay strings here; the
caller converts them to numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from floatlens.errors import FloatLensError

_CALL = re.compile(r"\s*([A-Za-z][\w.-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z][\w.-]*")
OPENS, CLOSES = "([", ")]"


@dataclass(frozen=True)
class Spec:
    """A name with its arguments in written order, as (name, value); the name of a positional argument is empty."""

    noun: str
    text: str
    name: str
    arguments: tuple[tuple[str, str], ...]

    def error(self, problem: str) -> FloatLensError:
        """An error that quotes the parsed text."""
        return FloatLensError(f"{self.noun} {self.text!r}: {problem}")

    def bind(self, parameters: Sequence[str], by_name: Sequence[str] = ()) -> dict[str, str]:
        """Values by parameter name; positional arguments are assigned in the order of `parameters`.

        Parameters in `by_name` must be passed by name.

        >>> parse_spec("top(4, by=mass)", "heads").bind(["n", "by"])
        {'n': '4', 'by': 'mass'}
        >>> parse_spec("top(4, of=mass)", "heads").bind(["n", "by"])
        Traceback (most recent call last):
        ...
        floatlens.errors.FloatLensError: heads 'top(4, of=mass)': 'of=mass' is not understood; top takes n, by
        """
        bound: dict[str, str] = {}
        for index, (key, value) in enumerate(self.arguments):
            name = key or (parameters[index] if index < len(parameters) else "")
            if name not in (*parameters, *by_name):
                takes = f"takes {', '.join((*parameters, *by_name)) or 'nothing'}"
                written = f"{key}={value}" if key else value
                raise self.error(f"{written!r} is not understood; {self.name} {takes}")
            if name in bound:
                raise self.error(f"{name} is given twice")
            bound[name] = value
        return bound


def parse_spec(text: str, noun: str, example: str = "") -> Spec:
    """Parse a name and its arguments. `noun` and `example` are used in error messages.

    >>> parse_spec("mask-anchors(sigma(k=3, minimum=1), layers=[0, 2])", "intervention").arguments
    (('', 'sigma(k=3, minimum=1)'), ('layers', '[0, 2]'))
    """
    match = _CALL.fullmatch(text)
    if not match:
        hint = f", such as {example}" if example else ""
        raise FloatLensError(f"{noun} {text!r} is not understood; write a name and its settings{hint}")
    parts = split_arguments(match[2] or "")
    if parts is None:
        raise FloatLensError(f"{noun} {text!r}: its brackets do not match")
    arguments = []
    for part in parts:
        named = _NAMED.match(part)
        key, value = (named[1], named[2].strip()) if named else ("", part)
        if not value:
            raise FloatLensError(f"{noun} {text!r}: {part!r} has no value; write it as name=value")
        arguments.append((key, value))
    return Spec(noun, text, match[1], tuple(arguments))


def split_arguments(text: str) -> list[str] | None:
    """Split at commas outside brackets; None if the brackets do not match."""
    parts, depth, start = [], 0, 0
    for index, sign in enumerate(text):
        depth += (sign in OPENS) - (sign in CLOSES)
        if depth < 0:
            return None
        if sign == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    if depth:
        return None
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def split_list(text: str) -> list[str]:
    """The items of a list, written with or without brackets."""
    inside = text.strip().removeprefix("[").removesuffix("]")
    return [part.strip() for part in inside.split(",") if part.strip()]
