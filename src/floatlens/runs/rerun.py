"""The command line that repeats a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatlens.errors import FloatLensError

COMMANDS = ("trace", "eval", "stress", "ablate", "study", "demo")  # those that make a run
DROPPED = ("--resume", "--retry-errors", "--json")


def rerun_arguments(manifest: Mapping[str, Any], out: str, run: str) -> list[str]:
    """The arguments of a run with another --out, without those that belong to the first attempt.

    >>> rerun_arguments({"arguments": ["eval", "tiny-mdm", "--out", "a", "--resume"]}, "b", "a")
    ['eval', 'tiny-mdm', '--out', 'b']
    """
    arguments = manifest.get("arguments")
    if not isinstance(arguments, list) or not arguments or not all(isinstance(word, str) for word in arguments):
        raise FloatLensError(f"{run} does not record the command that made it, so it cannot be repeated")
    if arguments[0] not in COMMANDS:
        raise FloatLensError(
            f"{run} was made by {arguments[0]!r}, which cannot be repeated; use a run of {', '.join(COMMANDS)}"
        )
    return [*_without_out([word for word in arguments if word not in DROPPED]), "--out", out]


def _without_out(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word == "--out":
            skip = True
        elif not word.startswith("--out="):
            kept.append(word)
    return kept
