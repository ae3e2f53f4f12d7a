"""Commands that do the same have the same options."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields

import pytest

from floatlens.cli.main import COMMANDS
from floatlens.cli.options import parse_numbers
from floatlens.errors import FloatLensError
from floatlens.options import GROUPS, Data, Load, Recording, Run, Sampling

HAVE = {name: {Load, Data, Sampling, Run} for name in ("trace", "eval", "stress", "deploy", "ablate", "study")}
HAVE["trace"] |= {Recording}
HAVE |= {"explore": {Load}, "inspect": {Load}}
# Commands that need only some options of a group: they read no data or no weights, or have only the bundled ones.
SOME = {
    "doctor": {"device"},
    "explore": {"template"},
    "plan": {"split", "limit", "passages", "batch_size", "max_new_tokens", "steps", "family", "dtype", "trace_dtype"},
    "demo": {"resume", "limit"},
    "stress": {"detail"},
    "figure": {"limit"},
    "paper": {"limit"},
    "study": {"detail"},
}


def parameters(command: str) -> set[str]:
    module, _ = COMMANDS[command]
    return set(inspect.signature(importlib.import_module(f"floatlens.cli.{module}").command).parameters)


def names(group: type) -> set[str]:
    """The names of a group's options on the command line."""
    shown = [field for field in fields(group) if field.metadata["flag"] is not None]
    return {(field.metadata["flag"] or field.name).replace("-", "_") for field in shown}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_all_options_of_a_group_or_those_that_it_needs(command: str) -> None:
    given, have = parameters(command), HAVE.get(command, set())
    assert {group for group in GROUPS if names(group) <= given} == have
    rest = given - set().union(*(names(group) for group in have))
    assert rest & set().union(*map(names, GROUPS)) == SOME.get(command, set())


def test_a_huge_range_of_numbers_is_refused_at_once():
    for text in ("0-99999999999", "0:99999999999999999999", "0:-99999999999:-1"):
        with pytest.raises(FloatLensError, match="--layers"):
            parse_numbers(text, "--layers")
