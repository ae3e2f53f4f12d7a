"""The detail of a stored trace: every head, or a summary (see `summarise`)."""

from __future__ import annotations

from typing import Literal, cast, get_args

from floatlens.errors import FloatLensError

Detail = Literal["full", "summary"]
DETAILS = get_args(Detail)


def check_detail(text: str) -> Detail:
    """Return the level of detail of this name; raise an error for an unknown one.

    >>> check_detail("short")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: detail 'short' is not known; use full or summary
    """
    if text not in DETAILS:
        raise FloatLensError(f"detail {text!r} is not known; use {' or '.join(DETAILS)}")
    return cast(Detail, text)
