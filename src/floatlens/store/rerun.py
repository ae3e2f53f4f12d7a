"""The command line that repeats a run, without the options that an untrusted manifest must not set.

The user who repeats a run decides where it is computed and whether pickled weights may be opened. Otherwise, a manifest that
names a Ray cluster could make this process unpickle the cluster's results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from floatlens.errors import FloatLensError
from floatlens.store.folder import RunFolder, trace_attributes
from floatlens.store.manifest import PRIVATE, hash_texts

COMMANDS = ("trace", "eval", "stress", "ablate", "study", "demo")  # those that make a run
DROPPED_FLAGS = ("--allow-pickle", "--resume", "--retry-errors", "--json")
DROPPED_OPTIONS = ("--engine", "--address", "--workers", "--gpus-per-worker", "--out")  # each with its value
REPORTED = ("--allow-pickle", "--engine", "--address", "--workers", "--gpus-per-worker")  # reported when dropped


def rerun_arguments(run: RunFolder, out: str, more: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The arguments that repeat a run, and the options that were left out and may be passed again.

    Parameters
    ----------
    more: arguments to add, which replace recorded texts of the same option.
    """
    arguments = run.manifest.get("arguments")
    if not isinstance(arguments, list) or not arguments or not all(isinstance(word, str) for word in arguments):
        raise FloatLensError(f"{run} does not record the command that made it, so it cannot be repeated")
    if arguments[0] not in COMMANDS:
        raise FloatLensError(
            f"{run} was made by {arguments[0]!r}, which cannot be repeated; use a run of {', '.join(COMMANDS)}"
        )
    words, dropped = drop_options(arguments)
    given = {word.partition("=")[0] for word in more}
    texts: dict[str, str] | None = None
    kept: list[str] = []
    for word in words:
        option, _, digest = word.partition("=")
        if option.removeprefix("--") not in PRIVATE or not digest.startswith("sha256:"):
            kept.append(word)
            continue
        if option in given:
            continue
        texts = recorded_texts(run) if texts is None else texts
        if digest not in texts:
            raise FloatLensError(
                f"the text of {option} is not stored in {run}; pass it again: floatlens rerun {run} -- {option} TEXT"
            )
        kept.append(f"{option}={texts[digest]}")  # one word, so that no text is taken for an option
    return [*kept, "--out", out, *more], [option for option in dropped if option not in given]


def drop_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without the options that a manifest must not set, and the names of those to report.

    >>> drop_options(["eval", "m", "--engine=ray", "--address", "evil:1", "--allow-pickle", "--limit", "3"])
    (['eval', 'm', '--limit', '3'], ['--engine', '--address', '--allow-pickle'])
    """
    kept: list[str] = []
    dropped: list[str] = []
    words = iter(arguments)
    for word in words:
        option, has_value, _ = word.partition("=")
        if option in DROPPED_OPTIONS or option in DROPPED_FLAGS:
            if option in DROPPED_OPTIONS and not has_value:
                next(words, None)
            if option in REPORTED:
                dropped.append(option)
        else:
            kept.append(word)
    return kept, dropped


def recorded_texts(run: RunFolder) -> dict[str, str]:
    """The user's texts in the traces of a run, by their hashes."""
    texts: list[Any] = []
    for _, path in run.samples():
        attributes: Mapping[str, Any] = trace_attributes(path / "zarr.json", run.path)
        texts += [attributes.get("question"), attributes.get("output")]
        try:
            answers = json.loads(str(attributes.get("answers", "[]")))
        except (ValueError, RecursionError):
            answers = []
        texts += answers if isinstance(answers, list) else []
    return {hash_texts(text): text for text in texts if isinstance(text, str)}
