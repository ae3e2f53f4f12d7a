"""The command line of `floatlens.options`: a command takes a value such as `Load` as one parameter, and lists its fields.

Options of one command only are declared in its file; those of several commands that do not travel further are here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floatlens.errors import FloatLensError

if TYPE_CHECKING:
    from floatlens.data.template import Template

DATA = "a file, a Hub data set, world, world:NAME or atlas"


def check_models(models: Any) -> Any:
    """Raise an error for models that do not exist while the command line is parsed, before slow imports."""
    from floatlens.models.checkpoint import check_name

    for name in [models] if isinstance(models, str) else models or ():
        check_name(name)
    return models


Model = Annotated[
    str,
    typer.Argument(help="Model: a folder, a Hub id, a GGUF file or a bundled name.", callback=check_models),
]
OneModel = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="Model: a folder, a Hub id, a GGUF file or a bundled name.", callback=check_models
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(help="Models: folders, Hub ids, GGUF files or bundled names.", callback=check_models),
]
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


def parse_names(text: str | None, option: str = "") -> list[str]:
    """Split a list at its commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_settings(texts: Sequence[str] | None, option: str) -> dict[str, Any] | None:
    """Parse settings of a sampler; the sampler checks their names and values.

    >>> parse_settings(["top_p=0.9", "remasking=random", "use_cache=true"], "--sampler-set")
    {'top_p': 0.9, 'remasking': 'random', 'use_cache': True}
    """
    found: dict[str, Any] = {}
    for text in texts or ():
        name, has_value, value = text.partition("=")
        if not (name and has_value):
            raise FloatLensError(f"{option} {text!r} is not understood; write NAME=VALUE, such as top_p=0.9")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found or None


def _parse_columns(text: str | None, option: str) -> dict[str, str] | None:
    from floatlens.data.layouts import parse_columns

    return parse_columns(text) if text else None


def _read_template(path: str | None, option: str) -> Template | None:
    from floatlens.data.template import read

    return read(path) if path else None


def _check_family(name: str | None, option: str) -> str | None:
    from floatlens.models.family import FAMILIES

    return name and FAMILIES[name].name


# How the text of an option becomes its value, where typer cannot tell: the type on the command line, and the function.
PARSERS: dict[str, tuple[Any, Callable[[Any, str], Any]]] = {
    "adapter": (str | None, lambda text, option: text),
    "columns": (str | None, _parse_columns),
    "device_map": (str | None, lambda text, option: text),
    "dtype": (str, lambda text, option: text),
    "detail": (str, lambda text, option: text),
    "family": (str | None, _check_family),
    "gold_at": (str | None, parse_numbers),
    "layers": (str | None, parse_numbers),
    "matrices": (str | None, lambda text, option: tuple(parse_names(text))),
    "only": (str | None, lambda text, option: tuple(parse_names(text))),
    "skip": (str | None, lambda text, option: tuple(parse_names(text))),
    "stress_interventions": (list[str] | None, lambda texts, option: tuple(texts)),
    "record": (str | None, lambda text, option: ("default", *parse_names(text))),
    "record_steps": (str | None, parse_numbers),
    "template": (str | None, _read_template),
}
SETTINGS = (list[str] | None, parse_settings)
