"""Training rows ask what their passages answer."""

from __future__ import annotations

import random

from recipes.smollm2.rows import Row, atlas_question, cloze_questions, cut, hidden_places, window

PARAGRAPHS = [
    "The harbour was built in 1887 by Anna Berg, an engineer from Oslo. It stands near the old Customs House, and "
    "about 1,200 ships called there in its first year. "
]


def test_a_gap_is_answered_by_its_paragraph() -> None:
    questions = cloze_questions(PARAGRAPHS)
    assert {q.answers[0] for q in questions} >= {"1887", "Anna Berg", "Customs House", "1,200"}
    for q in questions:
        assert q.question.count("____") == 1
        asked = q.question.removeprefix("Complete: ").replace("____", q.answers[0])
        assert asked in PARAGRAPHS[0].replace(f"{q.answers[0]},", q.answers[0]) and q.answers[0] not in q.question


def test_questions_of_atlas_bring_their_evidence_and_repeat_with_the_draw() -> None:
    questions = [atlas_question(random.Random(i)) for i in range(40)]
    assert questions == [atlas_question(random.Random(i)) for i in range(40)]
    assert {len(q.gold) for q in questions} == {1, 2}  # facts and chains of two
    for q in questions:
        assert q.answers[0].lower() in " ".join(q.gold).lower()
        assert not any(answer.lower() in other.lower() for other in q.others for answer in q.answers)


def test_no_question_of_the_scored_split_is_trained_on() -> None:
    trained = {atlas_question(random.Random(i)).question for i in range(300)}
    scored = {atlas_question(random.Random(i), "test").question for i in range(300)}
    assert not trained & scored


def test_a_window_keeps_the_title_and_the_answer() -> None:
    passage = "Title: " + " ".join(f"word{i}" for i in range(100))
    for seed in range(20):
        cut = window(passage, "word50 word51", 10, random.Random(seed))
        assert cut.startswith("Title: ") and "word50 word51" in cut and len(cut.split(" ")) == 11


def test_something_is_always_hidden_and_the_end_may_stand_already() -> None:
    states = [hidden_places(3, 8, random.Random(seed)) for seed in range(200)]
    assert all(state and set(state) <= set(range(8)) for state in states)
    assert any(state == list(range(8)) for state in states) and any(max(state) < 7 for state in states)


def test_a_row_without_some_tokens_keeps_its_targets() -> None:
    row = Row([10, 11, 12, 13, 14, 15], 3, [2, 4, 5], [0.25, 0.25, 0.25, 1.0, 1.0, 0.1], "text")
    shorter = cut(row, [1, 3, 4, 5])  # without tokens 10 and 12, the second of which was hidden
    assert shorter.ids == [11, 13, 14, 15] and shorter.start == 1
    assert [shorter.ids[i] for i in shorter.hidden] == [14, 15] and shorter.weights == [0.25, 1.0, 1.0, 0.1]
    assert cut(row, [0, 1, 3]).hidden == [2]  # something is always hidden
