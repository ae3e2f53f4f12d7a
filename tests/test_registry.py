"""Registries: built-in entries on the first look-up, priorities, names that are taken."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

import floatlens as fl
from floatlens.models.registry import FAMILIES, family_of
from floatlens.registry import Registry

THINGS: Registry[int] = Registry("thing", "slow_things")


def test_families_that_recognise_anything_are_asked_last() -> None:
    assert FAMILIES.names()[-2:] == ["masked", "causal"]
    with FAMILIES.restored():
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
        fl.register_sampler("dream", object)(lambda: iter(()))  # type: ignore[arg-type]
    with pytest.raises(fl.FloatLensError, match="the statistic 'received' is already registered"):
        fl.register_statistic(type("Mine", (fl.Statistic,), {"name": "received", "dims": ()}))


def test_the_same_code_may_register_again_as_a_notebook_cell_that_is_run_twice() -> None:
    with FAMILIES.restored():
        for about in ("first", "second"):

            def recognises(config: object) -> bool:
                return False

            fl.register_family(replace(FAMILIES["llada"], name="cell", about=about, recognises=recognises))
        assert FAMILIES["cell"].about == "second"


def test_every_kind_of_thing_may_be_registered_again_by_a_notebook_cell() -> None:
    from floatlens.data.readers.registry import READERS
    from floatlens.evaluation.stress.stress import STRESSES
    from floatlens.findings.finding import CLAIMS, FINDINGS, Finding, ReportText

    cell = """
@fl.register_stress("cell", axis="heat", about="hotter")
def levels(samples, asking, options):
    return []

@fl.register_reader
def cell(record):
    return None

def measure(traces):
    return None

fl.register_finding(Finding("cell", paper="", measure=measure, figure=measure, report=ReportText("", "")))

@fl.register_claim("cell.large", finding="cell", sentence="It is large.", source="me", effect=0.5)
def large(measured):
    return None

class Cell(fl.Statistic):
    name, dims = "cell", ()

fl.register_statistic(Cell)
"""
    from floatlens.attention.registry import STATISTICS

    main = {"__name__": "__main__", "fl": fl, "Finding": Finding, "ReportText": ReportText}
    with (
        STRESSES.restored(),
        READERS.restored(),
        FINDINGS.restored(),
        CLAIMS.restored(),
        STATISTICS.restored(),
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
        "import time\nfrom tests.test_registry import THINGS\n"
        "time.sleep(0.3)\nregister_thing = THINGS.add\nregister_thing('one', 1)\n"
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
        fl.FloatLensError, match=r"there is no sampler 'greedy'; choose one of (?=.*autoregressive)(?=.*dream).*llada"
    ):
        from floatlens.decode.registry import SAMPLERS

        SAMPLERS["greedy"]
