"""The command line of `floatlens.options`: a command takes a value such as `Load` as one parameter, and lists its fields.

Options of one command only are declared in its file; those of several commands that do not travel further are here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from floatlens.errors import FloatLensError
from floatlens.options import Run

if TYPE_CHECKING:
    from floatlens.data.template import Template
    from floatlens.store.engine import Engine

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
Detail = Annotated[
    Literal["full", "summary"],
    typer.Option(help="What traces keep: full (every head) or summary (means over heads).", metavar="TEXT"),
]
Out = Annotated[str | None, typer.Option(help="Run folder for the results: a path, or a URL such as s3://….")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def make_engine(running: Run) -> Engine:
    """Return the engine; raise an error for invalid options."""
    from floatlens.store import local

    return local.make_engine(
        running.engine, workers=running.workers, address=running.address, gpus_per_worker=running.gpus_per_worker
    )


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
    """Split a list at its commas.

    >>> parse_names("drift, stress"), parse_names(None)
    (['drift', 'stress'], [])
    """
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
    from floatlens.data.readers.layouts import parse_columns

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
    "heads": (str | None, parse_numbers),
    "layers": (str | None, parse_numbers),
    "matrices": (str | None, lambda text, option: tuple(parse_names(text))),
    "matrix_layers": (str | None, parse_numbers),
    "only": (str | None, lambda text, option: tuple(parse_names(text))),
    "skip": (str | None, lambda text, option: tuple(parse_names(text))),
    "stress_interventions": (list[str] | None, lambda texts, option: tuple(texts)),
    "record": (str | None, lambda text, option: ("default", *parse_names(text))),
    "record_steps": (str | None, parse_numbers),
    "template": (str | None, _read_template),
}
OTHER_TYPES = {"torch": SimpleNamespace(dtype=str)}  # torch is not imported to show help
SETTINGS = (list[str] | None, parse_settings)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a value of `floatlens.options` by its fields, as options.

    The default of the parameter gives the defaults of its options. An option of two values is listed once.

    >>> @grouped
    ... def command(model: str, sampling: Sampling = Sampling(steps=4), reading: Data = Data()) -> None:
    ...     print(model, sampling.steps, sampling.temperature, sampling.seed, reading.seed)
    >>> command(model="tiny-mdm", temperature=0.5, seed=3)
    tiny-mdm 4 0.5 3 3
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flat: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            flat[name] = _parameter(name, parameter.default, _with_panel(name, kind))
            continue
        groups[name] = parameter.default
        for field in fields(kind):
            if field.metadata["flag"] is not None:
                made = _field_option(kind, field, getattr(parameter.default, field.name))
                flat.setdefault(made.name, made)
    # Parameters without a default come first, as in any signature.
    ordered = sorted(flat.values(), key=lambda each: each.default is not each.empty)
    defaults = {each.name: each.default for each in ordered if each.default is not each.empty}

    def called(**given: Any) -> None:
        values = {**defaults, **given}
        chosen = {name: _value(default, values) for name, default in groups.items()}
        own = {name: values[name] for name in hints if name in values and name not in groups}
        command(**own, **chosen)

    called.__doc__, called.__name__, called.__module__ = command.__doc__, command.__name__, command.__module__
    called.__annotations__ = {each.name: each.annotation for each in ordered} | {"return": None}
    called.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    return called


def _value(default: Any, given: dict[str, Any]) -> Any:
    """Return the value of a group: its default with what was given on the command line."""
    changes = {}
    for field in fields(default):
        flag = field.metadata["flag"]
        if flag is None:
            continue
        parser = _parser(field)
        text = given[_name(field)]
        if parser is None:
            changes[field.name] = text
        elif text is not None:
            changes[field.name] = parser[1](text, f"--{_name(field).replace('_', '-')}")
    return replace(default, **changes)


def _field_option(kind: Any, field: Field[Any], default: Any) -> inspect.Parameter:
    about, parser = field.metadata, _parser(field)
    annotation = get_type_hints(kind, localns=OTHER_TYPES)[field.name] if parser is None else parser[0]
    name = _name(field)
    words = [f"--{name.replace('_', '-')}"] if annotation is bool else []
    shown: dict[str, Any] = {"rich_help_panel": kind.panel, "hidden": about["rare"]}
    option = typer.Option(*words, help=about["help"], min=about["least"], **shown)
    return _parameter(name, None if parser and not isinstance(default, str) else default, Annotated[annotation, option])


def _name(field: Field[Any]) -> str:
    return str(field.metadata["flag"] or field.name).replace("-", "_")


def _parser(field: Field[Any]) -> tuple[Any, Callable[[Any, str], Any]] | None:
    return SETTINGS if field.metadata["flag"] == "sampler-set" else PARSERS.get(field.name)


def _with_panel(name: str, annotation: Any) -> Any:
    """Show options of one command in the panel of its input, those of its output with the options of the run."""
    for each in getattr(annotation, "__metadata__", ()):
        if isinstance(each, typer.models.OptionInfo) and each.rich_help_panel is None:
            each.rich_help_panel = "Run" if name in ("out", "jobs", "as_json") else "Input"
    return annotation


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
