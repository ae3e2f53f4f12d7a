"""Format numbers and lists for sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10


def percent(share: float, digits: int = 0) -> str:
    """Format a share as a percentage.

    >>> percent(0.073), percent(0.0004), percent(float("nan"))  # the space does not break
    ('7\xa0%', '0.04\xa0%', 'unknown')
    """
    if share != share:
        return "unknown"
    value = 100 * share
    while digits < 2 and value and abs(value) < 0.95 * 10**-digits:
        digits += 1
    text = f"{value:.{digits}f}"
    text = text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")
    return f"{text}\N{NO-BREAK SPACE}%"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, in scientific notation only if it is tiny.

    >>> number(0.12345), number(1234.5), number(None), number(3.0), number(-0.0), number(-5.6e-17)
    ('0.123', '1234', '–', '3', '0', '0')
    """
    if value is None or value != value:
        return "–"
    if abs(value) < 1e-12:  # a rounding error
        return "0"
    if abs(value) < 0.0005:
        return f"{value:.1e}".replace("-", "−")
    digits_after = max(0, digits - 1 - floor(log10(abs(value))))
    text = f"{value:.{digits_after}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def points(value: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "unknown" if value != value else "0" if text[1:] == "0.0" else text


def listed(names: Sequence[str], word: str = "and") -> str:
    """Join names with commas and a final `word`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}" if names else ""


def count(n: int, thing: str) -> str:
    """Format a number of things, with a plural."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"
