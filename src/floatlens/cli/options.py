"""Arguments and options that several commands share, and `PARSERS`, by which `main.py` converts texts to option values.

Options that travel further are fields of `floatlens/options.py`, those of one command are declared in its file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from floatlens.data.layouts import parse_columns
from floatlens.data.read import READERS, RecordLayout
from floatlens.data.template import read
from floatlens.errors import FloatLensError

DATA = "a file, a Hub data set, world, world:NAME or atlas"
MODEL = (
    "a folder, a Hub id, a GGUF file or a bundled name; with @REVISION for a commit of the Hub, +FOLDER for a LoRA adapter, "
    ":FAMILY if its family is not detected, :arm or :mdm for a model that writes both ways."
)


def check_models(models: Any) -> Any:
    """Return the models, each once; raise an error for one that does not exist, before slow imports."""
    from floatlens.models.checkpoint import check_name

    for name in [models] if isinstance(models, str) else models or ():
        check_name(name)
    return list(dict.fromkeys(models)) if isinstance(models, list) else models


Model = Annotated[str, typer.Argument(help=f"Model: {MODEL}", callback=check_models)]
OneModel = Annotated[str | None, typer.Argument(metavar="NAME", help=f"Model: {MODEL}", callback=check_models)]
Models = Annotated[list[str], typer.Argument(help=f"Models: {MODEL}", callback=check_models)]
OneData = Annotated[str | None, typer.Option(help=f"Data set: {DATA}.")]
DataSets = Annotated[list[str], typer.Option("--data", help=f"Data set: {DATA}; repeat for several.")]
Out = Annotated[str | None, typer.Option(help="Run folder for the results: a path, or a URL such as s3://….")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


MOST_NUMBERS = 1_000_000  # more than a model has layers or a generation has steps


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """Parse a list of numbers of the command line; None stays None.

    >>> parse_numbers("0,4-6", "--layers"), parse_numbers("0:8:2", "--layers")
    ([0, 4, 5, 6], [0, 2, 4, 6])
    """
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            if ":" in part:
                numbers = range(*(int(word) for word in part.split(":")))
            elif "-" in part:
                first, last = part.split("-")
                numbers = range(int(first), int(last) + 1)
            else:
                numbers = range(int(part), int(part) + 1)
            if len(numbers) > MOST_NUMBERS:
                raise FloatLensError(f"{option} {text!r} is more than {MOST_NUMBERS:,} numbers; use a shorter range")
            found += numbers
    except (ValueError, TypeError, OverflowError):
        raise FloatLensError(
            f"{option} {text!r} is not understood; write numbers as 0,4-7 or start:end:step as 0:32:4"
        ) from None
    return sorted(set(found))


def parse_names(text: str | None, option: str = "") -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def parse_settings(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Parse settings of a sampler; the sampler checks their names and values.

    >>> parse_settings(["top_p=0.9", "remasking=random", "use_cache=true"], "--sampler-set")
    {'top_p': 0.9, 'remasking': 'random', 'use_cache': True}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, has_value, value = text.partition("=")
        if not (name and has_value):
            raise FloatLensError(f"{option} {text!r} is not understood; write NAME=VALUE, such as top_p=0.9")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _layout(text: str, option: str) -> str | None:
    return text if text in READERS and isinstance(READERS[text], RecordLayout) else None


def _columns(text: str, option: str) -> dict[str, str] | None:
    return None if _layout(text, option) else parse_columns(text)


def _records(text: str, matrices: bool) -> tuple[str, ...]:
    from floatlens.attention.statistic import MATRICES  # which imports torch

    return tuple(name for name in parse_names(text) if (name in MATRICES) == matrices)


# How the text of an option becomes its value, where it is not the value; two fields may share an option.
PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "columns": _columns,
    "layout": _layout,
    "gold_at": parse_numbers,
    "layers": parse_numbers,
    "matrices": lambda text, option: _records(text, matrices=True),
    "values": parse_numbers,
    "only": parse_names,
    "skip": parse_names,
    "record": lambda text, option: ("default", *_records(text, matrices=False)),
    "Load.sampler": lambda texts, option: parse_settings(texts, option).get("name"),
    "Sampling.sampler": lambda texts, option: (
        {name: value for name, value in parse_settings(texts, option).items() if name != "name"} or None
    ),
    "template": lambda path, option: read(path),
}
REPEATED = ("sampler_set", "stress_intervention")
