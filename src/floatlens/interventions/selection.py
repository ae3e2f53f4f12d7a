"""Selections of layers, heads or positions, written as 3, 0:4 or [0, 2, 5]; for layers also shallow or deep.

A selection is stored as text, so that it can be printed, compared and hashed; it is resolved once the model is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from floatlens.errors import FloatLensError

HALVES = ("shallow", "deep")
_SLICE = re.compile(r"\d*:\d*(:[1-9]\d*)?")


def canonical_text(given: Any, what: str, words: tuple[str, ...] = ()) -> str | None:
    """The text of a selection given as a number, a slice, several numbers, or text. None stays None.

    >>> canonical_text(slice(0, 4), "layer"), canonical_text([2, 0], "head"), canonical_text("[1, 2]", "head")
    ('0:4', '[0, 2]', '[1, 2]')
    """
    if given is None:
        return None
    if isinstance(given, slice):
        parts = ["" if part is None else str(part) for part in (given.start, given.stop, given.step)]
        given = ":".join(parts if given.step is not None else parts[:2])
    if isinstance(given, bool):
        raise not_understood(given, what, words)
    if isinstance(given, int):
        return _whole(str(given), what, words)
    if isinstance(given, str):
        text = given.strip()
        if text in words:
            return text
        if _SLICE.fullmatch(text):
            return text.removesuffix(":") if text.count(":") == 2 else text
        if text.startswith("[") and text.endswith("]"):
            return canonical_text([part.strip() for part in text[1:-1].split(",") if part.strip()], what, words)
        return _whole(text, what, words)
    if isinstance(given, Iterable):
        found = sorted({int(_whole(str(part), what, words)) for part in given})
        if not found:
            raise FloatLensError(f"no {what} was selected; pass at least one, or leave it out for all")
        return str(found[0]) if len(found) == 1 else f"[{', '.join(map(str, found))}]"
    raise not_understood(given, what, words)


def select_numbers(choice: str | None, count: int, what: str) -> list[int]:
    """The numbers of a selection among `count`; all of them for None. Raises an error for numbers that do not exist.

    >>> select_numbers("0:4", 6, "layer"), select_numbers(None, 3, "head"), select_numbers("deep", 6, "layer")
    ([0, 1, 2, 3], [0, 1, 2], [3, 4, 5])
    >>> select_numbers("0:8", 6, "layer")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: layer 7 does not exist; there are 6, from 0 to 5
    """
    if choice is None:
        return list(range(count))
    if choice in HALVES:
        # The middle layer of an odd number belongs to neither half, as in the findings.
        found = [n for n in range(count) if (2 * n < count - 1 if choice == "shallow" else 2 * n > count - 1)]
        return found or list(range(count))
    if ":" in choice:
        start, stop, step = (int(part) if part else None for part in (choice + "::").split(":")[:3])
        found = list(range(start or 0, count if stop is None else stop, step or 1))
        if not found:
            raise FloatLensError(f"the slice {choice} of {what}s is empty (the end is exclusive)")
    else:
        found = [int(part) for part in choice.strip("[]").split(",")]
    for number in reversed(found):
        if not 0 <= number < count:
            raise FloatLensError(f"{what} {number} does not exist; there are {count}, from 0 to {count - 1}")
    return found


def not_understood(given: Any, what: str, words: tuple[str, ...] = ()) -> FloatLensError:
    ways = ", ".join(["3", "0:4", "[0, 2, 5]", *words])
    return FloatLensError(f"{what}s {given!r} are not understood; write them as one of {ways}")


def _whole(text: str, what: str, words: tuple[str, ...]) -> str:
    if not text.isdecimal():
        raise not_understood(text, what, words)
    return str(int(text))
