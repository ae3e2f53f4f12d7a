"""The plan of a study: findings decide which questions are traced and which parts are worked on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from floatlens.data.sample import Sample
from floatlens.errors import FloatLensError
from floatlens.findings.finding import CLAIMS, FINDINGS
from floatlens.options import Data, Scope
from floatlens.studies.parts import first
from floatlens.studies.plan import PAPER, SIZES, StudyPlan, choose_findings


def planned(**scope: Any) -> StudyPlan:
    return StudyPlan(models=("m",), data=("d",), scope=Scope(**scope))


def test_a_study_of_links_has_traces_and_answers() -> None:
    assert planned(only=["links"]).parts == ("traces", "knowledge")


def test_findings_decide_which_questions_are_traced() -> None:
    assert planned(only=["drift", "knowledge"]).traced == ("short",)
    assert planned(only=["heads"]).traced == ("open-book",)
    assert planned(only=["drift", "heads"]).traced == ("short", "open-book")
    assert planned(only=["drift", "heads"], setting="passages").traced == ("open-book",)


def test_a_study_does_what_the_paper_did_and_more_when_asked() -> None:
    assert planned().findings == PAPER and planned(beyond=True).findings == tuple(FINDINGS.names())
    assert "causes" not in planned().parts and "causes" in planned(beyond=True).parts
    whose = {name: {claim.whose for claim in FINDINGS[name].registered_claims()} for name in FINDINGS}
    of_paper = {name for name, several in whose.items() if "the paper" in several}
    assert of_paper | {"sink"} == set(PAPER)


def test_no_claim_beyond_the_paper_is_primary() -> None:
    """The verdicts on primary claims are corrected for their number, so --beyond must not add one."""
    assert {claim.finding for claim in CLAIMS.values() if claim.primary} <= set(PAPER)


def test_findings_decide_which_parts_are_worked_on() -> None:
    assert planned(only=["heads"]).parts == ("traces",)
    assert planned(only=["stress", "drift"]).parts == ("traces", "texts", "stress", "replays")
    with pytest.raises(FloatLensError, match="unknown finding 'drfit'; did you mean 'drift'"):
        choose_findings(only=["drfit"])
    with pytest.raises(FloatLensError, match="removes all"):
        choose_findings(only=["drift"], skip=["drift"])


def test_a_limit_holds_for_every_part() -> None:
    few = planned(sizes={"traces": 4, "knowledge": None, "stress": 12, "causes": 12})
    assert replace(few, reading=Data(limit=8)).sizes == {**dict.fromkeys(SIZES, 8), "traces": 4}
    assert replace(planned(full=True), reading=Data(limit=8)).sizes == dict.fromkeys(SIZES, 8)
    with pytest.raises(FloatLensError, match="limit 0"):
        _ = replace(planned(), reading=Data(limit=0)).sizes
    with pytest.raises(FloatLensError, match="unknown part in sizes 'stres'; did you mean 'stress'"):
        _ = planned(sizes={"stres": 3}).sizes


def test_questions_are_taken_after_the_offset_or_drawn_by_the_seed() -> None:
    source: Any = SimpleNamespace(samples=lambda: [Sample(str(n), "Q?", []) for n in range(20)])
    assert [one.id for one in first(source, 3, planned(offset=5))] == ["5", "6", "7"]
    drawn = first(source, None, replace(planned(offset=5), reading=Data(seed=1)))
    assert sorted(int(one.id) for one in drawn) == list(range(5, 20)) != [int(one.id) for one in drawn]
