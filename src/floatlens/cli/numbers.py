"""Lists of numbers on the command line: 0,4-7 or 0:32:4."""

from __future__ import annotations

from floatlens.errors import FloatLensError


def numbers(text: str | None, name: str) -> list[int] | None:
    """Numbers from text; None stays None.

    >>> numbers("0,4-6", "--layers"), numbers("0:8:2", "--layers")
    ([0, 4, 5, 6], [0, 2, 4, 6])
    """
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            if ":" in part:
                found += range(*(int(word) for word in part.split(":")))
            elif "-" in part:
                first, last = part.split("-")
                found += range(int(first), int(last) + 1)
            else:
                found.append(int(part))
    except (ValueError, TypeError):
        raise FloatLensError(
            f"{name} {text!r} is not understood; write numbers as 0,4-7 or first:end:by as 0:32:4"
        ) from None
    return sorted(set(found))
