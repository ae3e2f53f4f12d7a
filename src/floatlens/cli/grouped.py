"""Groups of options: a command takes a group as one parameter, and its help lists the options one by one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter of a command that is a dataclass by the fields of the dataclass, as options.

    The default of the parameter gives the defaults of its options; without one, those of the fields are used.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sampling:
    ...     steps: int = 8
    ...     temperature: float = 0.0
    >>> @grouped
    ... def command(model: str, sampling: Sampling = Sampling(steps=4)) -> None:
    ...     print(model, sampling.steps, sampling.temperature)
    >>> command(model="tiny-mdm", temperature=0.5)
    tiny-mdm 4 0.5
    >>> list(inspect.signature(command).parameters)
    ['model', 'steps', 'temperature']
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            flat.append(_option(name, parameter.default, kind))
            continue
        groups[name] = kind
        given = kind() if parameter.default is parameter.empty else parameter.default
        own = get_type_hints(kind, include_extras=True)
        flat += [_option(field.name, getattr(given, field.name), own[field.name]) for field in fields(kind)]
    defaults = {each.name: each.default for each in flat if each.default is not each.empty}

    def called(**given: Any) -> None:
        values = {**defaults, **given}
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    called.__doc__, called.__name__, called.__module__ = command.__doc__, command.__name__, command.__module__
    called.__annotations__ = {each.name: each.annotation for each in flat} | {"return": None}
    called.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return called


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
