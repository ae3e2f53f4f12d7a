"""Registries: built-in entries on the first look-up, priorities, names that are taken."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import floatlens as fl
from floatlens.anchors import RULES
from floatlens.attention.statistic import STATISTICS, expand
from floatlens.data.read import READERS
from floatlens.decode.sampler import SAMPLERS, Sampler
from floatlens.evaluation.stress import STRESSES
from floatlens.findings.finding import CLAIMS, FINDINGS, Finding
from floatlens.interventions.intervention import INTERVENTIONS
from floatlens.models.family import FAMILIES, family_of
from floatlens.registry import Registry
from tests.commands import run
from tests.registries import restored

BUILT_IN: list[Registry[Any]] = [STATISTICS, READERS, SAMPLERS, STRESSES, FINDINGS, CLAIMS, INTERVENTIONS, FAMILIES]
THINGS: Registry[int] = Registry("thing", "slow_things", ["one"])


def test_families_that_recognise_anything_are_asked_last() -> None:
    assert FAMILIES.names()[-2:] == ["masked", "causal"]
    with restored(FAMILIES):
        fl.register_family(replace(FAMILIES["llada"], name="general", recognises=lambda config: True), priority=-30)
        assert family_of({"model_type": "gpt2"}).name == "causal"
        fl.register_family(
            replace(FAMILIES["llada"], name="particular", recognises=lambda config: "gpt" in config["model_type"])
        )
        assert family_of({"model_type": "gpt2"}).name == "particular"
    assert "particular" not in FAMILIES and "general" not in FAMILIES


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(fl.FloatLensError, match="the family 'llada' is already registered; choose another name"):
        fl.register_family(replace(FAMILIES["llada"], recognises=lambda config: True))
    with pytest.raises(fl.FloatLensError, match="the sampler 'dream' is already registered"):
        fl.register_sampler("dream")(type("Other", (Sampler,), {}))
    with pytest.raises(fl.FloatLensError, match="the statistic 'received' is already registered"):
        fl.register_statistic(type("Mine", (fl.Statistic,), {"name": "received", "dims": ()}))


def test_the_same_code_may_register_again_as_a_notebook_cell_that_is_run_twice() -> None:
    with restored(FAMILIES):
        for about in ("first", "second"):

            def recognises(config: object) -> bool:
                return False

            fl.register_family(replace(FAMILIES["llada"], name="cell", about=about, recognises=recognises))
        assert FAMILIES["cell"].about == "second"


def test_every_kind_of_thing_may_be_registered_again_by_a_notebook_cell() -> None:
    cell = """
@fl.register_stress("cell", axis="heat", about="hotter")
def levels(samples, options):
    return []

@fl.register_reader
def cell(record):
    return None

class CellFinding(Finding):
    name = "cell"

fl.register_finding(CellFinding())

@fl.register_claim("cell.large", finding="cell", sentence="It is large.", source="me", effect=0.5)
def large(measured):
    return None

class Cell(fl.Statistic):
    name, dims = "cell", ()

fl.register_statistic(Cell)
"""
    main = {"__name__": "__main__", "fl": fl, "Finding": Finding}
    with (
        restored(STRESSES),
        restored(READERS),
        restored(FINDINGS),
        restored(CLAIMS),
        restored(STATISTICS),
    ):
        exec(cell, main)
        first = STRESSES["cell"], FINDINGS["cell"], CLAIMS["cell.large"], READERS["cell"], STATISTICS["cell"]
        exec(cell, main)
        second = STRESSES["cell"], FINDINGS["cell"], CLAIMS["cell.large"], READERS["cell"], STATISTICS["cell"]
        assert all(one is not other for one, other in zip(first, second, strict=True))


def test_a_thread_waits_until_another_has_loaded_every_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_things").mkdir()
    (tmp_path / "slow_things" / "__init__.py").write_text("")
    (tmp_path / "slow_things" / "one.py").write_text(
        "import time\nfrom tests.test_registry import THINGS\ntime.sleep(0.3)\nTHINGS.add('one', 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(THINGS.names())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["one"]] * 4


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        fl.FloatLensError, match=r"unknown sampler 'greedy'; use one of (?=.*autoregressive)(?=.*dream).*llada"
    ):
        SAMPLERS["greedy"]


def test_an_unknown_name_is_answered_with_the_one_that_was_probably_meant() -> None:
    for registry, typed, meant in (
        (FINDINGS, "drft", "drift"),
        (FAMILIES, "lada", "llada"),
        (SAMPLERS, "autoregresive", "autoregressive"),
        (STATISTICS, "recieved", "received"),
        (INTERVENTIONS, "mask-anchor", "mask-anchors"),
        (STRESSES, "nois", "noise"),
        (READERS, "hotpott", "hotpot"),
        (RULES, "sgima", "sigma"),
    ):
        with pytest.raises(fl.FloatLensError) as raised:
            registry[typed]
        assert str(raised.value) == f"unknown {registry.noun} {typed!r}; did you mean {meant!r}?"
    with pytest.raises(fl.FloatLensError, match=re.escape("unknown statistic 'massiv'; did you mean 'massive'?")):
        expand(["default", "massiv"])  # a group
    assert "unknown command 'tracee'; did you mean 'trace'?" in run("tracee", code=2).stderr
    with pytest.raises(fl.FloatLensError, match=re.escape("unknown model 'tiny-mdn'; did you mean 'tiny-mdm'?")):
        fl.load("tiny-mdn")
    with pytest.raises(fl.FloatLensError, match=re.escape("unknown model 'gpt'; use a folder, a .gguf file, a Hub id")):
        fl.load("gpt")


@pytest.mark.parametrize("registry", BUILT_IN, ids=lambda registry: registry.noun)
def test_every_file_that_registers_something_is_in_the_list_of_its_folder(registry: Registry[Any]) -> None:
    folder = Path(fl.__file__).parent.joinpath(*registry.package.split(".")[1:])
    # a finding also registers the claims that claims.toml declares for it
    names = f"register_{registry.noun}|declare_{registry.noun}|variant"
    names += "|register_finding|declare_finding" if registry is CLAIMS else ""
    call = re.compile(rf"^(@|\w+ = )?({names})\b", re.MULTILINE)
    registering = [path.relative_to(folder) for path in folder.rglob("*.py") if call.search(path.read_text())]
    assert {".".join(path.with_suffix("").parts) for path in registering} == set(registry.modules)


def test_the_order_of_a_registry_does_not_depend_on_what_was_imported_first() -> None:
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]\n"
    code += "from tests.test_registry import BUILT_IN; print([registry.names() for registry in BUILT_IN])"
    late = [f"{registry.package}.{registry.modules[-1]}" for registry in BUILT_IN]
    found = [
        subprocess.run([sys.executable, "-c", code, *first], capture_output=True, text=True, check=True).stdout
        for first in ([], late)
    ]
    assert found[0] == found[1] == f"{[registry.names() for registry in BUILT_IN]}\n"
