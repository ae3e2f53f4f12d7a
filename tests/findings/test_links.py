"""Links: a planted relation between traces and answers is found, and no relation where there is none."""

import numpy as np
import pandas as pd
import pytest

from floatlens.errors import FloatLensError
from floatlens.evaluation.answers import AnswerRecord, answers_table
from floatlens.findings.finding import CLAIMS
from floatlens.findings.links import links, stratified
from floatlens.stats import bonett_wright, spearman
from tests.findings.planted import planted

N = 40


def move_at(step_of_move):
    return lambda step, layer: {5 if step < step_of_move else 40: 0.5}


def traces(kind="mdm", model="m"):
    """Question i moves its anchor after i % 5 of 8 steps, so floating takes five values; an ARM's sink grows likewise."""
    found = []
    for i in range(N):
        plan = move_at(i % 5) if kind == "mdm" else (lambda step, layer, i=i: {0: 0.2 + 0.1 * (i % 5)})
        sample = f"d, short, q{i}"
        trace = planted(
            seed=i, model=model, kind=kind, steps=8, layers=2, heads=1, kv_heads=1, anchors=plan, sample_id=sample
        )
        found.append(trace)
    return found


def answers(right, model="m", kind="mdm", positions=3):
    """`right(i, condition)` says whether question i is answered rightly."""
    rows = []
    for i in range(N):
        for condition in ("closed-book", "open-book", *(f"position={at}" for at in range(positions))):
            score = float(right(i, condition))
            row = AnswerRecord(
                f"q{i}", "Q?", ["a"], model, "d", condition, em=score, accuracy=score, accuracy_words=score, f1=score
            )
            row.kind = kind
            if "=" in condition:
                row.stress, _, row.level = condition.partition("=")
                row.x = float(row.level)
            rows.append(row)
    return answers_table(rows)


def test_questions_that_float_more_and_gain_more_support_the_link():
    table = answers(lambda i, condition: condition == "open-book" and i % 5 >= 3)
    measured = links.measure((traces(), table))
    np.testing.assert_allclose(
        measured["floating"].values[:5], [0, 2 * 7 / 56, 4 * 6 / 56, 6 * 5 / 56, 8 * 4 / 56], rtol=1e-5
    )
    assert measured["gain"].values[:5].tolist() == [0, 0, 0, 1, 1]
    found = CLAIMS["links.gain"].verdict(measured)
    assert found.verdict == "holds" and found.n == N


def test_a_gain_that_does_not_depend_on_floating_rejects_it():
    luck = np.random.default_rng(3).random(N)
    table = answers(lambda i, condition: condition == "open-book" and luck[i] < 0.5)
    found = CLAIMS["links.gain"].verdict(links.measure((traces(), table)))
    assert found.verdict != "holds" and abs(found.value) < 0.3
    same = CLAIMS["links.gain"].verdict(links.measure((traces(), answers(lambda i, condition: True))))
    assert same.verdict == "not testable here" and "the same for all questions" in same.reason


def test_a_sink_that_grows_with_the_loss_in_the_middle():
    table = answers(lambda i, condition: condition != "position=1" or i % 5 < 2, kind="arm")
    measured = links.measure((traces("arm"), table))
    assert CLAIMS["links.sink"].verdict(measured).verdict == "holds"
    data = links.figure(measured, backend="none")
    assert set(data["pair"]) == {"gain", "middle"} and len(links.figure(measured).axes) == 2


def test_a_claim_on_a_sink_needs_one():
    table = answers(lambda i, condition: condition != "position=1" or i % 5 < 2, kind="arm")
    even = [planted(seed=i, model="m", kind="arm", steps=8, layers=2, heads=1, kv_heads=1, anchors=lambda s, la: {},
                    sample_id=f"d, short, q{i}") for i in range(N)]  # fmt: skip
    found = CLAIMS["links.sink"].verdict(links.measure((even, table)))
    assert found.verdict == "not testable here" and found.reason.startswith("no sink: position 0 gets")


def test_sets_that_differ_are_no_link_between_questions():
    rng = np.random.default_rng(0)
    sets = np.repeat(["a", "b"], 50)
    x, y = (rng.standard_normal(100) + 10 * (sets == "b") for _ in range(2))
    _, (low, high), within = stratified(x, y, sets)
    assert spearman(x, y) > 0.7 and low < 0 < high and set(within) == {"a", "b"}
    alone = spearman(x[:50], y[:50])
    assert stratified(x[:50], y[:50], sets[:50])[:2] == (pytest.approx(alone), pytest.approx(bonett_wright(alone, 50)))
    assert stratified(x[:3], y[:3], sets[:3])[2] == {}


def test_equal_losses_in_the_middle_are_equal_numbers():
    table = answers(lambda i, condition: i % 2 or condition == "closed-book", kind="arm", positions=5)
    assert set(links.measure((traces("arm"), table))["middle"].values) == {0.0}  # not 5.6e-17 where all are right


def test_traces_alone_are_not_enough():
    with pytest.raises(FloatLensError, match="traces and answers together"):
        links.measure(traces())
    assert isinstance(links.measure((traces(), answers(lambda i, c: True))).to_dataframe(), pd.DataFrame)
