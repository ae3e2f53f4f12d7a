"""Commands that do the same have the same options."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from floatlens.cli.main import COMMANDS, PANELS, list_options
from floatlens.cli.options import parse_names, parse_numbers
from floatlens.cli.shared import rate_of
from floatlens.errors import FloatLensError
from floatlens.models.family import FAMILIES
from floatlens.options import Data, Load, Recording, Run, Sampling, Scope
from floatlens.store.folder import RunFolder
from floatlens.trace.trace import Trace
from tests.commands import run

GROUPS = (Load, Data, Sampling, Recording, Run, Scope)

HAVE = {name: {Load, Data, Sampling, Run} for name in ("trace", "eval", "stress", "ablate", "study")}
HAVE["trace"] |= {Recording}
HAVE["study"] |= {Scope}
HAVE |= {"explore": {Load}, "models": {Load}, "track": {Load, Data}}
# Commands that need only some options of a group: they read no data or no weights, or have only the bundled ones.
SOME = {
    "doctor": {"device"},
    "explore": {"template"},
    "demo": {"resume", "limit", "only", "full", "jobs"},
    "stress": {"detail"},
    "track": {"resume"},
    "figure": {"limit"},
}


def parameters(command: str) -> set[str]:
    module, _ = COMMANDS[command]
    return set(inspect.signature(list_options(importlib.import_module(f"floatlens.cli.{module}").command)).parameters)


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


def test_one_option_has_one_meaning_and_one_default() -> None:
    defaults: dict[str, set[str]] = {}
    for command in COMMANDS:
        module = importlib.import_module(f"floatlens.cli.{COMMANDS[command][0]}")
        for name, each in inspect.signature(list_options(module.command)).parameters.items():
            defaults.setdefault(name, set()).add(repr(each.default))
    assert defaults["batch_size"] == {"16"}
    assert not {"order", "budget"} & set(defaults), "one was two things, the other had no unit"
    assert not hasattr(Trace, "attention"), "its kind is attention_kind"


def test_a_huge_range_of_numbers_is_refused_at_once():
    for text in ("0-99999999999", "0:99999999999999999999", "0:-99999999999:-1"):
        with pytest.raises(FloatLensError, match="--layers"):
            parse_numbers(text, "--layers")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_has_more_than_thirty_options_and_none_is_hidden(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # at another width a line of a help text may begin with an option
    shown = set(re.findall(r"^[│\s*]*(--[a-z][a-z-]+)", run(command, "--help").stdout, re.MULTILINE)) - {"--help"}
    arguments = [name for name in parameters(command) if f"--{name.replace('_', '-')}" not in shown]
    assert len(shown) <= 30 and len(arguments) <= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_panels_in_order_whole_examples_and_no_type_beside_flags(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(command, "--help").stdout
    panels = [panel for panel in re.findall(r"─ (\w+) ─", shown) if panel not in ("Arguments", "Options")]
    assert panels == [panel for panel in PANELS if panel in panels]
    assert "<bool>" not in shown
    module = importlib.import_module(f"floatlens.cli.{COMMANDS[command][0]}")
    examples = re.findall(r"^ {8}(floatlens .*)$", module.command.__doc__ or "", re.MULTILINE)
    assert [example for example in examples if not any(line.strip() == example for line in shown.splitlines())] == []


def test_models_lists_hub_ids_whole_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("models").stdout
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    assert all(family.example in shown for family in FAMILIES.values())


def test_settings_of_one_sampler_are_typed_and_unknown_ones_refused(tmp_path: Path) -> None:
    words = ("trace", "tiny-arm", "--prompt", "Where?", "--max-new-tokens", 2, "--out", tmp_path / "run")
    run(*words, "--sampler-set", "top_k=3", "--sampler-set", "temperature=1.0")
    [(_, path)] = RunFolder.open(tmp_path / "run").samples()
    assert Trace.open(path).settings["top_k"] == 3
    assert "top_k" in run(*words, "--sampler-set", "top_k=few", code=2).stderr
    assert "no setting 'cfg_scale'; it takes" in run(*words, "--sampler-set", "cfg_scale=1", code=2).stderr
    assert "write NAME=VALUE" in run(*words, "--sampler-set", "top_k", code=2).stderr


def test_names_are_split_at_commas_and_rates_are_readable() -> None:
    assert parse_names("drift, stress") == ("drift", "stress") and parse_names(None) == ()
    assert (rate_of(50, 10), rate_of(2, 60)) == ("5.0/s", "30 s each")
