"""Sizes that fit a time budget: the largest possible, never below what a claim needs, with a list of what was reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from floatlens.errors import FloatLensError
from floatlens.studies.parts.traces import traced
from floatlens.studies.plan import StudyPlan, choose_findings
from floatlens.studies.sizes import LEAST, Sizes, fit_sizes, longest, parse_time

PARTS = ("traces", "knowledge", "stress")


def seconds(sizes: Sizes, parts: Sequence[str]) -> float:
    """A trace takes ten seconds, an answer one."""
    cost = {"traces": 10, "knowledge": 1, "stress": 1}
    return float(sum(cost[name] * getattr(sizes, name) for name in parts))


def test_what_fits_is_not_cut() -> None:
    sizes = Sizes(24, 100, 40, 40)
    assert fit_sizes(sizes, PARTS, 380, seconds) == (sizes, PARTS, [])


@pytest.mark.parametrize("time", [200, 250, 300])
def test_sizes_are_the_largest_that_fit(time: int) -> None:
    sizes, parts, cut = fit_sizes(Sizes(24, 100, 40, 40), PARTS, time, seconds)
    assert parts == PARTS
    assert seconds(sizes, parts) <= time
    bigger = Sizes(*(int(n * 1.1) + 1 for n in (sizes.traces, sizes.knowledge, sizes.stress, sizes.causes)))  # type: ignore[operator]
    assert seconds(bigger, parts) > time
    assert f"knowledge: {sizes.knowledge} questions per data set instead of 100" in cut


def test_parts_go_before_a_size_falls_below_what_a_claim_needs() -> None:
    sizes, parts, cut = fit_sizes(Sizes(24, 100, 40, 40), PARTS, 140, seconds)
    assert sizes.traces == LEAST and seconds(sizes, parts) <= 140
    assert parts == ("traces", "knowledge")
    assert any(sentence.startswith("stress: left out") for sentence in cut)


def test_a_study_of_links_has_traces_and_answers() -> None:
    assert StudyPlan(models=("m",), data=("d",), findings=choose_findings(only=["links"])).parts == (
        "traces",
        "knowledge",
    )


def test_findings_decide_which_questions_are_traced() -> None:
    def conditions(*names: str, setting: str = "paper") -> tuple[str, ...]:
        return StudyPlan(models=("m",), data=("d",), findings=choose_findings(only=names), setting=setting).traced

    assert conditions("drift", "knowledge") == ("short",)
    assert conditions("heads") == ("open-book",)
    assert conditions("drift", "heads") == ("short", "open-book")
    assert conditions("drift", "heads", setting="passages") == ("open-book",)


def test_a_data_set_for_short_questions_leaves_fewer_of_them_to_the_others() -> None:
    @dataclass
    class Source:
        name: str

    plan = StudyPlan(models=("m", "big"), data=("long", "fresh"), sizes=Sizes(traces=2, short=5))
    sources: list[Any] = [Source("long"), Source("fresh")]

    def numbers(plan: StudyPlan, model: str) -> dict[tuple[str, str], int | None]:
        return {(source.name, condition): n for source, condition, n in traced(plan, plan.sizes, sources, model)}

    each = {(name, "short"): 5 for name in ("long", "fresh")} | {(name, "open-book"): 2 for name in ("long", "fresh")}
    assert numbers(plan, "m") == each
    plan = replace(plan, short_data=("long",), traced_only=("big",))
    beside = {("long", "short"): 5, ("fresh", "short"): 2}
    assert numbers(plan, "m") == beside | {("fresh", "open-book"): 2}
    assert numbers(plan, "big") == beside


def test_a_time_that_is_too_short_is_said() -> None:
    _, parts, cut = fit_sizes(Sizes(24, 100, 40, 40), PARTS, 1, seconds)
    assert parts == ("traces",)
    assert any("too short" in sentence for sentence in cut)


def test_models_side_by_side_take_as_long_as_the_busiest_worker() -> None:
    assert longest({"a": 60, "b": 50, "c": 30}, 2) == 80
    assert longest({"a": 60, "b": 50, "c": 30}, 1) == 140


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "0s", "-3m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(FloatLensError, match="budget"):
        parse_time(text)


def test_findings_decide_which_parts_are_worked_on() -> None:
    assert StudyPlan(models=("m",), data=("d",), findings=choose_findings(only=["heads"])).parts == ("traces",)
    assert StudyPlan(models=("m",), data=("d",), findings=choose_findings(only=["stress", "drift"])).parts == (
        "traces",
        "stress",
    )
    with pytest.raises(FloatLensError, match="unknown finding 'drfit'; did you mean 'drift'"):
        choose_findings(only=["drfit"])
    with pytest.raises(FloatLensError, match="removes all"):
        choose_findings(only=["drift"], skip=["drift"])


def test_a_limit_holds_for_every_part() -> None:
    assert Sizes(4, None, 12, 12).limited(8) == Sizes(4, 8, 8, 8, 8)
    assert Sizes(4, None, 12, 12).bounded([3, 30]) == Sizes(4, 30, 12, 12, 24)
    with pytest.raises(FloatLensError, match="limit 0"):
        Sizes().limited(0)
