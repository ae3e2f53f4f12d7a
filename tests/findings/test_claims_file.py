"""`claims.toml`: every finding and claim has its texts there, and nothing else."""

import math
from inspect import signature
from string import Formatter

import pytest

from floatlens.findings.draw import layer_maps, lines
from floatlens.findings.finding import CLAIMS, FINDINGS, TEXTS
from tests.findings.planted import TRACED, planted

FINDING = {"title", "question", "paper", "views", "claims"}
SOMETIMES = {"table", "labels", "variables", "columns", "says"}
DATA = {"reads", "setting", "parts", "needs", "needs_means", "records", "maps"}  # what a finding takes
OPTIONAL = {"primary", "setting", "aloud", "aloud_fails"}
REPLAYED = {f"window_{name}" for name in ("floating", "moved", "model", "kind", "text")}  # only with prose
DRAWN = {*signature(lines).parameters, *signature(layer_maps).parameters} - {"measured", "backend"}
PRIMARY = {"drift.floats", "drift.fixed", "drift.moves"}
DECLARED = {"number", "of", "beside", "sink", "layers", "below", "what"}
CLAIM = {"id", "sentence", "otherwise", "whose", "source", "statistic", "effect", "why", "rejected_if", "needs"}


def test_the_file_has_exactly_the_findings_in_the_order_of_the_report_and_their_figures():
    assert list(TEXTS) == FINDINGS.names()
    for name, text in TEXTS.items():
        assert FINDING <= text.keys() <= FINDING | SOMETIMES | DATA, name
        assert list(text["views"]) == list(FINDINGS[name].views), name
        for view, about in text["views"].items():
            own = set() if hasattr(FINDINGS[name], f"draw_{view}") else DRAWN
            assert {"title", "reading"} <= about.keys() <= {"title", "reading", "shows"} | own, (name, view)
            assert {*about.get("shows", ())} <= {claim["id"] for claim in text["claims"]}, (name, view)


@pytest.mark.parametrize("name", TRACED)
def test_every_number_that_a_finding_returns_is_described(name):
    measured = FINDINGS[name].measure(planted(copying=(4, 0)))
    assert set(measured.data_vars) - {"depth"} == TEXTS[name]["variables"].keys() - REPLAYED
    assert TEXTS[name].get("labels", {}).keys() <= TEXTS[name]["variables"].keys()
    assert all(measured[number].attrs["description"] for number in set(measured.data_vars) - {"depth"})


@pytest.mark.parametrize("name", TRACED)
def test_declared_claims_sentences_and_columns_name_numbers_of_the_measurement(name):
    known, text = TEXTS[name]["variables"].keys(), TEXTS[name]
    for claim in text["claims"]:
        assert ("number" in claim) == ("of" in claim) and ("number" in claim or not claim.keys() & DECLARED), claim[
            "id"
        ]
        assert {claim[key] for key in ("number",) if key in claim} | set(claim.get("beside", {}).values()) <= known
    named = {field for said in text.get("says", ()) for _, field, _, _ in Formatter().parse(said) if field}
    assert named - {"model"} | set(text.get("columns", {}).values()) <= known


def test_every_claim_is_complete_fits_a_line_and_has_a_function():
    written = [claim for text in TEXTS.values() for claim in text["claims"]]
    assert sorted(claim["id"] for claim in written) == sorted(CLAIMS.names())
    for name, text in TEXTS.items():
        for claim in text["claims"]:
            assert claim.keys() - {*OPTIONAL, *DECLARED} == CLAIM and claim["id"].startswith(f"{name}."), claim["id"]
            texts = [claim[key] for key in CLAIM - {"effect"}]
            assert all(isinstance(one, str) and one == " ".join(one.split()) != "" for one in texts), claim["id"]
            assert isinstance(claim["effect"], float) and math.isfinite(claim["effect"]), claim["id"]
            assert claim["whose"] in ("the paper", "FloatLens") or claim["source"].startswith(claim["whose"]), claim[
                "id"
            ]
            assert (claim["whose"] == "the paper") == claim["source"].startswith("arXiv 2601.07894"), claim["id"]
            assert claim.get("primary", False) == (claim["id"] in PRIMARY), claim["id"]
            assert len(claim["sentence"]) <= 50 and len(claim["otherwise"]) <= 55, claim["id"]
            assert CLAIMS[claim["id"]].about in (("mdm",), ("arm",), ("mdm", "arm"), ("model",))
