"""The text of an intervention: a name and settings, `mask-anchors(rule=sigma(3), layers=0:4)`, read into its parts."""

from __future__ import annotations

import re

from floatlens.errors import FloatLensError

_SPEC = re.compile(r"\s*([a-z][a-z-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
OPENS, CLOSES = "([", ")]"


def read(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Name and settings; a setting without a name has an empty one.

    >>> read("mask-anchors(sigma(k=3, minimum=1), layers=[0, 2])")
    ('mask-anchors', [('', 'sigma(k=3, minimum=1)'), ('layers', '[0, 2]')])
    """
    match = _SPEC.fullmatch(text)
    if not match:
        raise FloatLensError(
            f"intervention {text!r} is not understood; write a name and settings, such as mask-anchors(rule=sigma(3))"
        )
    found = []
    for part in split(match[2] or "", text):
        key, value = _named(part)
        if not value:
            raise FloatLensError(f"intervention {text!r}: {part!r} has no value; write it as name=value")
        found.append((key, value))
    return match[1], found


def split(text: str, whole: str) -> list[str]:
    """Parts between commas that stand in no bracket.

    >>> split("a, b(c, d), [e, f]", "")
    ['a', 'b(c, d)', '[e, f]']
    """
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in OPENS) - (sign in CLOSES)
        if depth < 0:
            break
        if sign == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    if depth:
        raise FloatLensError(f"intervention {whole!r}: its brackets do not match")
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _named(part: str) -> tuple[str, str]:
    """Split at the first = outside of brackets."""
    match = re.match(r"\s*([a-z_]+)\s*=(.*)", part, re.DOTALL)
    return (match[1], match[2].strip()) if match else ("", part)
