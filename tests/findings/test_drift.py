"""Drift on planted anchors, with numbers computed by hand."""

import subprocess
import sys

import numpy as np
import pytest

from floatlens.anchors import baseline, find_anchors
from floatlens.decode import replay
from floatlens.errors import FloatLensError
from floatlens.findings import definitions
from floatlens.findings.drift import REPLAY, drift
from floatlens.findings.finding import CLAIMS
from floatlens.findings.received import profile
from tests import oracle
from tests.findings.planted import planted, wandering

STEPS = (8, 32, 128)


def verdict(traces, claim):
    return CLAIMS[claim].verdict(drift.measure(traces))


def move_at(step_of_move, before=5, after=40):
    return lambda step, layer: {before if step < step_of_move else after: 0.5}


@pytest.mark.parametrize("steps", STEPS)
def test_uniform_causal_attention_has_no_anchor(steps):
    found = drift(planted(kind="arm", steps=steps, anchors=lambda step, layer: {}, noise=0.0))
    assert (found["n_anchors"] == 0).all() and (found["without_anchors"] == 1).all()
    assert found["floating"].isnull().all() and found["floating_writing"].isnull().all()


@pytest.mark.parametrize("steps", STEPS)
def test_a_sink_does_not_float(steps):
    for kind in ("mdm", "arm"):
        found = drift(planted(kind=kind, steps=steps, anchors=lambda step, layer: {0: 0.6}))
        for name in ("floating", "renewal", "turnover"):
            np.testing.assert_allclose(found[name], 0.0, atol=1e-6)
        np.testing.assert_allclose(found["dwell"], steps)
        np.testing.assert_allclose(found["floating_writing"].sel(tokens=steps), 0.0, atol=1e-6)


@pytest.mark.parametrize("steps", STEPS)
def test_one_move_halfway_floats_by_one_half_for_any_number_of_steps(steps):
    found = drift(planted(steps=steps, anchors=move_at(steps // 2)))
    np.testing.assert_allclose(found["floating"], 0.5 * steps / (steps - 1), rtol=1e-6)
    np.testing.assert_allclose(found["renewal"], 1.0)
    np.testing.assert_allclose(found["floating_writing"].sel(tokens=steps), 0.5 * steps / (steps - 1), rtol=1e-6)
    np.testing.assert_allclose(found["turnover"], 1 / (steps - 1), rtol=1e-6)  # which depends on it


@pytest.mark.parametrize("steps", STEPS)
def test_a_move_after_a_quarter_renews_all_and_floats_in_three_eighths_of_the_pairs(steps):
    found = drift(planted(steps=steps, anchors=move_at(steps // 4)))
    np.testing.assert_allclose(found["renewal"], 1.0)
    np.testing.assert_allclose(found["floating"], 2 * 0.25 * 0.75 * steps / (steps - 1), rtol=1e-6)


@pytest.mark.parametrize("steps", STEPS)
def test_uniform_attention_on_what_is_revealed_does_not_shift_beyond_the_null(steps):
    trace = planted(steps=steps)
    prompt = trace.prompt_length
    committed = np.concatenate([np.full(prompt, -1), np.arange(steps)])  # revealed from left to right
    trace.data["committed_at"].values[:] = committed
    visible_ST = committed < np.arange(steps)[:, None]
    a_ST = np.where(visible_ST, 0.9 / visible_ST.sum(1, keepdims=True), 0.1 / (~visible_ST).sum(1, keepdims=True))
    trace.data["received"].values[:] = a_ST[:, None, None]
    found = drift(trace)
    assert (found["movement"] > 0.2).all()
    np.testing.assert_allclose(found["shift"], 0.0, atol=1e-5)


def test_anchors_that_move_every_step_never_return():
    found = drift(planted(anchors=wandering(speed=3, others=1), steps=10))
    for name in ("turnover", "floating", "renewal", "dwell"):
        np.testing.assert_allclose(found[name], 1.0)
    np.testing.assert_allclose(found["n_anchors"], 1.0)


def test_uniform_attention_has_no_anchors_and_no_drift():
    found = drift(planted(anchors=lambda step, layer: {}, noise=0.0))
    assert (found["n_anchors"] == 0).all()
    assert found["turnover"].isnull().all() and found["dwell"].isnull().all()
    np.testing.assert_allclose(found["head_similarity"], 1.0, atol=1e-6)
    np.testing.assert_allclose(found["spread_writing"], 1.0, atol=1e-5)


def test_a_sink_that_differs_by_layer_differs_between_layers_alone():
    found = drift(planted(layers=3, anchors=lambda step, layer: {10 * layer: 0.5}))
    assert (found["between_layers"].item(), found["within_layers"].item()) == pytest.approx((1.0, 0.0))


def test_the_baseline_of_causal_attention_is_the_closed_form():
    for length in (2, 24, 52):
        padded = np.concatenate([np.zeros(length), np.full(3, np.nan)])
        np.testing.assert_allclose(baseline(padded, "causal")[:length], oracle.causal_baseline(length))
        assert np.isnan(baseline(padded, "causal")[length:]).all()


def test_our_anchors_are_those_of_the_definition():
    for trace in (planted(anchors=wandering()), planted(kind="arm")):
        a = profile(trace).values
        u = baseline(a, trace.attention_kind)
        assert (find_anchors(a, "sigma(3)", trace.attention_kind) == oracle.find_anchors(a, u)).all()
    full = planted(anchors=wandering())
    for rule in ("sigma(3)", "share(0.3)", "excess(3)", "top(2)"):  # a constant baseline changes nothing
        assert (find_anchors(profile(full).values, rule, "bidirectional") == full.anchors(rule).values).all()


def test_floating_by_length_is_floating_of_each_beginning():
    rng = np.random.default_rng(0)
    p_ST = np.eye(4)[rng.integers(0, 4, 9)] * (rng.random(9) > 0.3)[:, None]
    wanted = [definitions.floating(p_ST[:n]) for n in range(1, 10)]
    np.testing.assert_allclose(definitions.floating_by_length(p_ST), wanted)


def test_a_trace_without_writing_rows_stands_beside_others():
    with_rows, without = planted(seed=0, sample_id="a"), planted(seed=1, sample_id="b")
    without.data = without.data.drop_vars("received_writing", errors="ignore")
    measured = drift([with_rows, without])
    assert measured["n_written"].values[0] > 0 and measured["n_written"].values[1] == 0
    assert np.isnan(measured["floating_writing"].values[1]).all()
    assert np.isfinite(measured["floating"].values).all()


def test_renewal_by_length_is_renewal_of_each_beginning():
    rng = np.random.default_rng(0)
    for steps in (1, 7, 32):
        p_ST = rng.random((steps, 5)) * (rng.random((steps, 5)) < 0.3)  # some steps without anchors
        p_ST = definitions.anchor_mass(p_ST, p_ST > 0)
        wanted = [definitions.renewal(p_ST[:n]) for n in range(1, steps + 1)]
        np.testing.assert_allclose(definitions.renewal_by_length(p_ST), wanted, atol=1e-12)


def test_the_name_of_a_replay_is_that_of_its_sampler():
    assert REPLAY == replay.NAME


def test_reading_findings_loads_no_model_code():
    code = (
        "import sys; from floatlens.findings.finding import FINDINGS; FINDINGS['causes']; print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


def test_the_mdm_moves_more_than_the_arm_over_as_many_tokens_as_both_wrote():
    mdm = [planted(seed=i, anchors=move_at(6)) for i in range(14)]
    arm = [planted(seed=i, model="planted-arm", kind="arm", steps=8) for i in range(14)]
    found = verdict([*mdm, *arm], "drift.moves")
    assert (found.verdict, found.n, found.models) == ("holds", 14, ("planted-mdm", "planted-arm"))
    assert found.value == pytest.approx(2 * 6 * 2 / (8 * 7))  # the first 8 steps: 6 before the move, 2 after
    assert (found.id, found.effect) == ("drift.moves", 0.1)
    assert "0.00 in the ARM" in found.reason


def test_an_arm_whose_rows_move_too_rejects_the_claim():
    mdm = [planted(seed=i, anchors=wandering()) for i in range(12)]
    arm = [planted(seed=i, model="planted-arm", kind="arm", anchors=wandering()) for i in range(12)]
    found = verdict([*mdm, *arm], "drift.moves")
    assert found.verdict == "fails" and found.value == pytest.approx(0.0)


def test_claims_on_one_model():
    moving = [planted(seed=i, anchors=move_at(6)) for i in range(12)]
    still = [planted(seed=i) for i in range(12)]
    assert verdict(moving, "drift.renewal").verdict == "holds"
    assert verdict(still, "drift.renewal").verdict == "fails"
    by_layer = [planted(seed=i, anchors=lambda step, layer: {7 * layer: 0.5}) for i in range(12)]
    assert verdict(by_layer, "drift.layers").verdict == "holds"
    assert verdict(still, "drift.layers").verdict == "fails"


def test_spread_is_the_share_of_visible_positions():
    wide = [planted(seed=i, anchors=lambda step, layer: {}, noise=0.0) for i in range(12)]
    narrow = [planted(seed=i, model="arm", kind="arm", anchors=lambda step, layer: {0: 0.9}) for i in range(12)]
    found = verdict([*wide, *narrow], "drift.spread")
    assert found.verdict == "holds" and found.details["MDM"] == pytest.approx(1.0, abs=1e-4)


def test_tasks_with_anchors_of_their_own_are_told_apart_and_random_tasks_are_not():
    rng = np.random.default_rng(0)
    tasks, lengths = np.array(["a", "b"] * 12), np.repeat([4, 5], 12)
    apart = np.eye(5)[np.where(tasks == "a", 0, 1)]
    found = definitions.length_matched_tasks(apart, tasks, lengths)
    assert (found.between, found.within) == (1.0, 0.0) and found.p < 0.01
    same = definitions.length_matched_tasks(np.eye(5)[rng.integers(0, 5, 24)], tasks, lengths)
    assert same.p > 0.05 and abs(same.between - same.within) < 0.2
    assert definitions.length_matched_tasks(apart, tasks, np.where(tasks == "a", 4, 5)) is None  # never of equal length


def test_the_task_comes_from_the_data_set_of_the_sample_id():
    names = {0: "world:fresh", 1: "world:slots"}
    traces = [
        planted(seed=i, sample_id=f"{names[i % 2]}, short, {i}", anchors=move_at(6) if i % 2 else None)
        for i in range(24)
    ]
    found = verdict(traces, "drift.task")
    assert found.verdict == "holds" and found.n == 24 and found.details["p of a permutation"] < 0.01


def test_too_few_samples_decide_nothing():
    found = drift.claim([planted(anchors=wandering()), planted(model="arm", kind="arm")])
    assert found.verdict == "not testable here" and "at least 12" in found.reason
    alone = drift.claim([planted(seed=i) for i in range(12)])
    assert alone.verdict == "not testable here" and alone.reason == "there is no ARM among the samples"


def test_a_layer_that_was_not_recorded_is_named():
    with pytest.raises(FloatLensError, match=r"layer 40 was not recorded.*0-5"):
        drift(planted(), layer=40)


def test_attention_that_moves_right_is_measured_in_shares_of_the_answer():
    """Half of the attention moves right by 11 positions in an answer of 12."""
    moving = [planted(seed=i, anchors=lambda s, la: {10 + s: 0.5}) for i in range(12)]
    found = CLAIMS["drift.right"].verdict(drift.measure(moving))
    assert found.verdict == "holds" and found.whose == "the paper"
    assert found.value == pytest.approx(0.5 * 11 / 12, abs=0.05)
    still = [planted(seed=i, anchors=lambda s, la: {10: 0.5}) for i in range(12)]
    assert CLAIMS["drift.right"].verdict(drift.measure(still)).verdict == "fails"
