"""Drift on planted anchors: the numbers can be worked out by hand."""

import numpy as np
import pytest

from floatlens.errors import FloatLensError
from floatlens.findings.drift import centre, drift, dwell, slope, turnover, wasserstein
from floatlens.findings.received import anchors_of, newest_rows, profile
from tests.findings.planted import planted, wandering


def test_anchors_that_move_three_positions_a_step_are_measured_so():
    trace = planted(anchors=wandering(speed=3, others=2), steps=10)
    found = drift(trace)
    length = trace.data.sizes["position"]
    np.testing.assert_allclose(found["anchor_slope"], 3.0, atol=1e-5)
    np.testing.assert_allclose(found["anchor_shift"], 3.0 * 9 / length, atol=1e-6)
    np.testing.assert_allclose(found["turnover"], 1.0)
    np.testing.assert_allclose(found["turnover_total"], 1.0)
    np.testing.assert_allclose(found["dwell"], 1.0)
    np.testing.assert_allclose(found["n_anchors"], 2.0)
    np.testing.assert_allclose(found["top_variance_steps"], np.var(3 * np.arange(10)))
    np.testing.assert_allclose(found["top_variance_layers"], 0.0)


def test_an_anchor_that_moves_every_other_step_turns_over_half_the_time():
    found = drift(planted(steps=9, anchors=lambda step, layer: {5 + 4 * (step // 2): 0.5}))
    np.testing.assert_allclose(found["turnover"], 0.5)
    np.testing.assert_allclose(found["dwell"], 9 / 5)


def test_one_planted_sink_does_not_move():
    found = drift(planted(kind="arm", anchors=lambda step, layer: {0: 0.6}))
    for name in (
        "turnover",
        "top_turnover",
        "top_turnover_newest",
        "turnover_total",
        "anchor_slope",
        "top_variance_steps",
    ):
        np.testing.assert_allclose(found[name], 0.0, atol=1e-6)
    np.testing.assert_allclose(found["dwell"], 12.0)


def test_uniform_attention_has_no_anchors_and_no_drift():
    found = drift(planted(anchors=lambda step, layer: {}, noise=0.0))
    length = planted().data.sizes["position"]
    assert (found["n_anchors"] == 0).all()
    assert found["turnover"].isnull().all() and found["dwell"].isnull().all()
    np.testing.assert_allclose(found["centre"], (length - 1) / 2, rtol=1e-5)
    np.testing.assert_allclose(found["wasserstein"], 0.0, atol=1e-4)
    np.testing.assert_allclose(found["head_similarity"], 1.0, atol=1e-6)


def test_a_sink_that_differs_by_layer_has_variance_over_layers_alone():
    found = drift(planted(layers=3, anchors=lambda step, layer: {10 * layer: 0.5}))
    assert found["top_variance_layers"].item() == pytest.approx(np.var([0, 10, 20]))
    np.testing.assert_allclose(found["top_variance_steps"], 0.0)


def test_steps_of_a_growing_sequence_are_compared_on_positions_that_both_have():
    anchors = np.array([[1, 0, 0], [1, 0, 1]], bool)
    there = np.array([[1, 1, 0], [1, 1, 1]], bool)
    assert turnover(anchors, there).tolist() == [0.0]
    assert turnover(anchors).tolist() == [0.5]


def test_the_newest_row_is_recovered_from_running_means():
    rng = np.random.default_rng(0)
    matrix = np.tril(rng.random((8, 8)))
    matrix /= matrix.sum(axis=1, keepdims=True)
    means = np.full((4, 1, 8), np.nan)
    for step, size in enumerate(range(5, 9)):
        means[step, 0, :size] = matrix[:size].mean(axis=0)[:size]
    rows = newest_rows(means)
    for step, query in enumerate(range(5, 8)):
        np.testing.assert_allclose(rows[step, 0, : query + 1], matrix[query, : query + 1], atol=1e-12)


def test_steps_that_were_left_out_count():
    whole = planted(anchors=wandering(speed=2), steps=9)
    part = planted(anchors=wandering(speed=2), steps=9)
    part.data = part.data.isel(step=[0, 4, 8])
    np.testing.assert_allclose(drift(part)["anchor_slope"], 2.0, atol=1e-5)
    np.testing.assert_allclose(drift(part)["anchor_shift"], drift(whole)["anchor_shift"], atol=1e-6)


def test_rounded_running_means_do_not_give_rows():
    trace = planted(kind="arm")
    trace.data = trace.data.assign(received=trace.data["received"].astype(np.float16))
    assert drift(trace)["top_turnover_newest"].isnull().all()


def test_distances_and_slopes_by_hand():
    assert wasserstein(np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])).tolist() == [1.0]
    assert slope(np.array([4.0, 2.0, 0.0])).item() == -2.0
    assert centre(np.array([0.25, 0.0, 0.75])).item() == 1.5
    assert dwell(np.array([[1], [0], [1], [1]], bool)).item() == 1.5


def test_our_anchors_are_those_of_the_trace():
    for trace in (planted(anchors=wandering()), planted(kind="arm")):
        for rule in ("sigma(3)", "share(0.3)", "excess(3)", "top(2)"):
            ours = anchors_of(profile(trace).values, rule, trace.attention)
            assert (ours == trace.anchors(rule).values).all()


def test_the_claims_on_planted_models():
    mdm = [planted(seed=i, anchors=wandering(speed=1 + i % 3)) for i in range(6)]
    arm = [planted(seed=i, model="planted-arm", kind="arm") for i in range(6)]
    moves, right = drift.claims([*mdm, *arm])
    assert (moves.verdict, moves.n, moves.rule) == ("supported", 6, "sigma(k=3)")
    assert moves.models == ("planted-mdm", "planted-arm")
    assert right.verdict == "supported" and right.interval[0] > 0
    left = drift.claims([planted(seed=i, anchors=wandering(start=60, speed=-1 - i % 2, others=1)) for i in range(6)])
    assert left[1].verdict == "not supported"
    assert left[0].verdict == "inconclusive" and "no ARM" in left[0].reason


def test_an_arm_whose_anchors_move_too_is_reported_as_such():
    jumping = [planted(seed=i, anchors=wandering()) for i in range(6)]
    also = [planted(seed=i, model="planted-arm", kind="arm", anchors=jump(i)) for i in range(6)]
    found = drift.claim([*jumping, *also])
    assert found.verdict == "inconclusive"
    assert "newest query" in found.reason  # the running mean hides it: that is why the newest row is looked at


def jump(seed):
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 60, 100)
    return lambda step, layer: {int(places[step]): 0.9}


def test_too_few_samples_decide_nothing():
    found = drift.claim([planted(anchors=wandering()), planted(model="arm", kind="arm")])
    assert found.verdict == "inconclusive" and "at least 5" in found.reason


def test_a_layer_that_was_not_recorded_is_named():
    with pytest.raises(FloatLensError, match=r"layer 40 was not recorded.*0-5"):
        drift(planted(), layer=40)
