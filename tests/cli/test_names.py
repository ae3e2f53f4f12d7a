"""Names with brackets are printed unchanged, although brackets are markup for the printing library."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest
from rich.console import Console

from floatlens.cli import ablate, figure, stress
from floatlens.evaluation.table import files, table1, terminal
from floatlens.findings.verdict import Verdict

NAME = "runs/[v2]/[/v2]"  # to rich an opened tag, and one that is closed without having been opened
SPEC = "mask-positions(region=[doc1, doc2])"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


def test_in_the_table_of_interventions(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "model": NAME,
        "data": "d",
        "n": 3,
        "condition": SPEC,
        "change": {"accuracy": {"value": 0.5, "interval": [0.25, 0.75]}},
        "beyond": {},
    }
    ablate.show({"results": [row], "claims": [], "problems": {}})
    said = capsys.readouterr().out
    assert NAME in said and SPEC in said and "+0.50 [+0.25, +0.75]" in said


def test_the_names_of_doses_are_whole_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    specs = [f"mask-anchors(rule=sigma(k={dose}, minimum=1), layers=shallow, random=3)" for dose in (1, 2, 4)]
    rows = [{"model": NAME, "data": "d", "n": 7, "condition": spec, "change": {}, "beyond": {}} for spec in specs]
    ablate.show({"results": rows, "claims": [], "problems": {}})
    said = capsys.readouterr().out
    assert all(spec in said for spec in specs) and "…" not in said


def test_in_the_table_of_stress(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"model": NAME, "data": "[d]", "level": "[3]", "low": 0.0, "high": 1.0, "mean": 0.5, "n": 3}
    stress.show(pd.DataFrame([row]), {"robustness": [], "effects": [], "claims": [], "problems": {}})
    said = capsys.readouterr().out
    assert NAME in said and "[d]" in said and "[3]" in said


def test_in_the_table_of_claims(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict("drift", "A [claim]", "", 0.5, (0.25, 0.75), "holds", "top(1)", 9, ("a[b]",), "as [they] say")
    figure.show([verdict], [], 0)
    said = capsys.readouterr().out
    for text in ("A [claim]", "a[b]", "as [they] say", "[0.25, 0.75]", "value [95 % interval]"):
        assert text in said


def test_in_table_1() -> None:
    result = {"model": NAME, "data": "=[d]", "condition": "open-book", "accuracy": 0.5}
    made, out = table1([result]), io.StringIO()
    Console(file=out, width=200).print(*terminal(made))
    assert NAME in out.getvalue() and "=[d]" in out.getvalue()
    heads = next(csv.reader(io.StringIO(files(made)["table1.csv"])))
    assert heads[1] == "'=[d] Acc"  # or a spreadsheet would run it
