"""Floating of two models on identical text, compared with their own answers."""

from __future__ import annotations

import pytest

from floatlens.findings import drift
from floatlens.findings.drift import IDENTICAL
from floatlens.trace.trace import Trace
from tests.findings.planted import planted

QUESTIONS = 12


def still(step: int, layer: int) -> dict[int, float]:
    return {0: 0.6}


def one_move(step: int, layer: int) -> dict[int, float]:
    """Halfway through 12 steps: 36 of 66 pairs of steps lie on either side."""
    return {0: 0.6} if step < 6 else {9: 0.6}


def labelled(trace: Trace, answer: str, sampler: str) -> Trace:
    return Trace(trace.data.assign_attrs(output=answer, sampler=sampler))


def written(kind: str, question: int) -> Trace:
    made = planted(model=f"the-{kind}", kind=kind, anchors=still, sample_id=f"data, short, {question}", seed=question)
    return labelled(made, f"{kind} says {question}", kind)


def replayed(kind: str, source: str, question: int) -> Trace:
    sample = f"data, replay of the-{source}, {question}"
    plan = one_move if kind == "mdm" else still
    made = planted(model=f"the-{kind}", kind=kind, anchors=plan, sample_id=sample, seed=question)
    return labelled(made, f"{source}  says {question} ", "replay")


def test_the_same_answers_through_both_models_are_compared_question_by_question() -> None:
    own = [written(kind, n) for kind in ("mdm", "arm") for n in range(QUESTIONS)]
    replays = [replayed("mdm", source, n) for source in ("mdm", "arm") for n in range(QUESTIONS)]
    replays += [replayed("arm", "mdm", n) for n in range(QUESTIONS)]  # its own answer it has written already
    measured = drift.measure([*own, *replays])
    assert measured.sizes["sample"] == 2 * QUESTIONS, "replays are no samples of their own"
    first = drift.claims(measured)[0]
    assert first.id == "drift.moves" and first.value == pytest.approx(0.0, abs=1e-6)
    value, low, high = first.details[IDENTICAL]
    assert value == pytest.approx(36 / 66, abs=1e-6) and low <= value <= high
    assert first.details["questions on identical text"] == QUESTIONS
    [table] = [table for table in drift.drift.tables(measured) if "each way" in table.title]
    variants = [row[1] for row in table.rows]
    assert variants[0].endswith("(primary)") and variants.count(IDENTICAL) == 1


def test_texts_that_only_one_model_was_made_to_write_do_not_count() -> None:
    own = [written(kind, n) for kind in ("mdm", "arm") for n in range(QUESTIONS)]
    first = drift.claims([*own, *(replayed("mdm", "mdm", n) for n in range(QUESTIONS))])[0]
    assert first.details["questions on identical text"] == 0
    assert IDENTICAL not in drift.claims(own)[0].details


def test_replays_alone_are_measured_like_any_traces() -> None:
    measured = drift.measure([replayed("mdm", "arm", 0), replayed("arm", "arm", 0)])
    assert measured.sizes["sample"] == 2 and "floating_text" not in measured
