"""Usage errors: one sentence that names the problem, the value and the fix.

The command line prints the message and exits with code 2; it shows a traceback only with --debug.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FloatLensError(Exception):
    """An error that the user can fix.

    >>> raise FloatLensError("steps 0 is not a positive number; try --steps 32")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: steps 0 is not a positive number; try --steps 32
    """


class NotANumber(FloatLensError):
    """NaN or inf in a model's outputs for one sample: the sample is recorded as an error, and the run continues."""


def unknown_name(noun: str, name: str, known: Iterable[str], use: str = "one of") -> FloatLensError:
    """The error for a name that is not known: with the name that was probably meant, or else with all of them.

    >>> str(unknown_name("finding", "drft", ["drift", "flow"])), str(unknown_name("finding", "x", ["drift", "flow"]))
    ("unknown finding 'drft'; did you mean 'drift'?", "unknown finding 'x'; use one of drift, flow")
    """
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]!r}?" if close else f"use {use} {', '.join(names)}"
    return FloatLensError(f"unknown {noun} {name!r}; {hint}")


def check_known(noun: str, name: str, known: Iterable[str]) -> None:
    """Raise `unknown_name` unless the name is one of `known`."""
    names = list(known)
    if name not in names:
        raise unknown_name(noun, name, names)
