"""The plan of a study: findings decide which questions are traced and which parts are worked on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from floatlens.errors import FloatLensError
from floatlens.options import Data, Scope
from floatlens.studies.parts import traced
from floatlens.studies.plan import Sizes, StudyPlan, choose_findings


def planned(**scope: Any) -> StudyPlan:
    return StudyPlan(models=("m",), data=("d",), scope=Scope(**scope))


def test_a_study_of_links_has_traces_and_answers() -> None:
    assert planned(only=["links"]).parts == ("traces", "knowledge")


def test_findings_decide_which_questions_are_traced() -> None:
    assert planned(only=["drift", "knowledge"]).traced == ("short",)
    assert planned(only=["heads"]).traced == ("open-book",)
    assert planned(only=["drift", "heads"]).traced == ("short", "open-book")
    assert planned(only=["drift", "heads"], setting="passages").traced == ("open-book",)


def test_a_data_set_for_short_questions_leaves_fewer_of_them_to_the_others() -> None:
    @dataclass
    class Source:
        name: str

    plan = replace(planned(sizes={"traces": 2, "short": 5}), models=("m", "big"), data=("long", "fresh"))
    sources: list[Any] = [Source("long"), Source("fresh")]

    def numbers(plan: StudyPlan, model: str) -> dict[tuple[str, str], int | None]:
        return {(source.name, condition): n for source, condition, n in traced(plan, sources, model)}

    each = {(name, "short"): 5 for name in ("long", "fresh")} | {(name, "open-book"): 2 for name in ("long", "fresh")}
    assert numbers(plan, "m") == each
    plan = replace(plan, scope=replace(plan.scope, short_data=("long",), traced_only=("big",)))
    beside = {("long", "short"): 5, ("fresh", "short"): 2}
    assert numbers(plan, "m") == beside | {("fresh", "open-book"): 2}
    assert numbers(plan, "big") == beside


def test_a_model_that_is_only_traced_can_have_its_own_data() -> None:
    plan = planned(traced_only=("big",), traced_data=("atlas",), traced_tokens=3)
    own = plan.of_model("big")
    assert (own.data, own.sampling.max_new_tokens) == (("atlas",), 3) and plan.of_model("m") is plan


def test_findings_decide_which_parts_are_worked_on() -> None:
    assert planned(only=["heads"]).parts == ("traces",)
    assert planned(only=["stress", "drift"]).parts == ("traces", "stress")
    with pytest.raises(FloatLensError, match="unknown finding 'drfit'; did you mean 'drift'"):
        choose_findings(only=["drfit"])
    with pytest.raises(FloatLensError, match="removes all"):
        choose_findings(only=["drift"], skip=["drift"])


def test_a_limit_holds_for_every_part() -> None:
    assert Sizes(4, None, 12, 12).limited(8) == Sizes(4, 8, 8, 8, 8, 8)
    assert replace(planned(full=True), reading=Data(limit=8)).sizes == Sizes(8, 8, 8, 8, 8, 8)
    with pytest.raises(FloatLensError, match="limit 0"):
        Sizes().limited(0)
    with pytest.raises(FloatLensError, match="unknown part 'stres' in sizes"):
        _ = planned(sizes={"stres": 3}).sizes
