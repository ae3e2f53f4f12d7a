"""Commands that do the same have the same options."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields

import pytest

from floatlens.cli import options
from floatlens.cli.main import COMMANDS
from floatlens.errors import FloatLensError

GROUPS = {
    "data": options.DataOptions,
    "sampler": options.SamplerOptions,
    "model": options.ModelOptions,
    "run": options.RunOptions,
}
HAVE = {name: set(GROUPS) for name in ("trace", "eval", "stress", "deploy", "ablate", "study")} | {"explore": {"model"}}
# Commands that need only some options of a group: they read no data or no weights, or have only the bundled ones.
SOME = {
    "doctor": {"device"},
    "explore": {"template"},
    "inspect": {"family", "adapter", "sampler", "dtype"},
    "plan": {"split", "passages", "batch_size", "max_new_tokens", "steps", "family", "dtype"},
    "demo": {"resume"},
    "world": {"passages"},
}


def parameters(command: str) -> set[str]:
    module, _ = COMMANDS[command]
    return set(inspect.signature(importlib.import_module(f"floatlens.cli.{module}").command).parameters)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_all_options_of_a_group_or_those_that_it_needs(command: str) -> None:
    names = {group: {field.name for field in fields(kind)} for group, kind in GROUPS.items()}
    given = parameters(command)
    assert {group for group in GROUPS if names[group] <= given} == HAVE.get(command, set())
    others = set().union(*(names[group] for group in GROUPS if group not in HAVE.get(command, set())))
    assert given & others == SOME.get(command, set())


def test_a_huge_range_of_numbers_is_refused_at_once():
    for text in ("0-99999999999", "0:99999999999999999999", "0:-99999999999:-1"):
        with pytest.raises(FloatLensError, match="--layers"):
            options.parse_numbers(text, "--layers")
