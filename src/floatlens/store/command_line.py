"""The arguments of the running command, for the manifest: `floatlens rerun` uses them again."""

from __future__ import annotations

from collections.abc import Sequence

_ARGUMENTS: list[str] = []


def set_arguments(arguments: Sequence[str]) -> None:
    """Set the arguments after `floatlens`."""
    _ARGUMENTS[:] = arguments


def get_arguments() -> list[str]:
    """The arguments that were set last.

    >>> set_arguments(["models"]); get_arguments()
    ['models']
    """
    return list(_ARGUMENTS)
