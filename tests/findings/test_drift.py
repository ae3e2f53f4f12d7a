"""Drift on planted anchors, with numbers computed by hand."""

import subprocess
import sys

import numpy as np
import pytest

from floatlens.anchors import baseline, find_anchors
from floatlens.errors import FloatLensError
from floatlens.findings import definitions
from floatlens.findings.drift import OTHER_TASK, OTHER_WORDS, UNTRAINED, drift, task_of
from floatlens.findings.finding import CLAIMS
from floatlens.findings.positions import profile
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
        for name in ("floating", "renewal", "renewed", "floating_writing"):
            np.testing.assert_allclose(found[name], 0.0, atol=1e-6)


@pytest.mark.parametrize("steps", STEPS)
def test_one_move_halfway_floats_by_one_half_for_any_number_of_steps(steps):
    found = drift(planted(steps=steps, anchors=move_at(steps // 2)))
    np.testing.assert_allclose(found["floating"], 0.5 * steps / (steps - 1), rtol=1e-6)
    np.testing.assert_allclose(found["renewal"], 1.0)
    np.testing.assert_allclose(found["floating_writing"], 0.5 * steps / (steps - 1), rtol=1e-6)


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
    for name in ("floating", "renewal"):
        np.testing.assert_allclose(found[name], 1.0)
    np.testing.assert_allclose(found["n_anchors"], 1.0)


def test_uniform_attention_has_no_anchors_and_no_drift():
    found = drift(planted(anchors=lambda step, layer: {}, noise=0.0))
    assert (found["n_anchors"] == 0).all()
    assert found["floating"].isnull().all() and found["renewed"].isnull().all()
    np.testing.assert_allclose(found["spread"], 1.0, atol=1e-5)


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


def test_a_trace_without_writing_rows_stands_beside_others():
    with_rows, without = planted(seed=0, sample_id="a"), planted(seed=1, sample_id="b")
    without.data = without.data.drop_vars("received_writing", errors="ignore")
    measured = drift([with_rows, without])
    known = np.isfinite(measured["floating_writing"].values).any(axis=1)
    assert known.tolist() == [True, False]
    assert np.isfinite(measured["floating"].values).all()


def test_reading_findings_loads_no_model_code():
    code = (
        "import sys; from floatlens.findings.finding import FINDINGS; FINDINGS['causes']; print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


# Replays and prose, which a study makes


def own_and_replayed(own, **replayed):
    """Twelve questions of one model with planted anchors, and the same answers replayed with others."""
    plans = {"short": own, **{name.replace("_", " "): plan for name, plan in replayed.items()}}
    return [
        planted(seed=i, anchors=plan, sample_id=f"world:fresh, {variant}, {i}", noise=0.0)
        for variant, plan in plans.items()
        for i in range(12)
    ]


def sink(step, layer):
    return {5: 0.5}


def test_the_mdm_floats_if_it_moves_more_than_the_untrained_network_and_the_order_of_writing():
    assert (UNTRAINED, OTHER_WORDS, OTHER_TASK) == ("untrained", "other words", "another task")
    found = verdict(own_and_replayed(move_at(6), untrained=sink), "drift.floats")
    assert (found.verdict, found.n, found.primary) == ("holds", 12, True)
    assert found.value == pytest.approx(0.5 * 12 / 11)
    assert found.details["untrained null"][0] == pytest.approx(0.0)
    as_untrained = verdict(own_and_replayed(move_at(6), untrained=move_at(6)), "drift.floats")
    assert as_untrained.verdict == "fails" and as_untrained.value == pytest.approx(0.0)


def test_anchors_that_are_explained_by_the_order_of_writing_do_not_float():
    """The token that is revealed first takes half of the attention from then on: reveal explains all of it."""
    traces = own_and_replayed(sink, untrained=sink)
    for trace in traces[:12]:
        first = int(np.flatnonzero(trace.data["committed_at"].values == 5)[0])  # revealed at step 6
        received = trace.data["received"].values
        received[:] = 0.5 / (received.shape[-1] - 1)
        received[:6, ..., 5] = received[6:, ..., first] = 0.5
        received[6:, ..., 5] = 0.5 / (received.shape[-1] - 1)
    measured = drift.measure(traces)
    floating, reveal = measured["floating"].values, measured["floating_reveal"].values
    assert (floating > 0.4).all() and (reveal < floating).all()
    trace = planted(noise=0.0)
    strength = 1.0 + 30 * (np.arange(trace.data.sizes["position"]) == trace.prompt_length + 2)
    revealed = trace.data["committed_at"].values < np.arange(12)[:, None]
    null = np.where(revealed, strength, 1.0)
    trace.data["received"].values[:] = (null / null.sum(axis=1, keepdims=True))[:, None, None]
    found = drift.measure(trace)
    np.testing.assert_allclose(found["floating_reveal"], found["floating"], atol=1e-6)


def test_without_replays_and_prose_the_claims_that_need_them_say_so():
    alone = [planted(seed=i, anchors=move_at(6)) for i in range(12)] + [planted(kind="arm", model="arm")]
    for claim in ("drift.floats", "drift.renewal", "drift.instruction"):
        found = verdict(alone, claim)
        assert found.verdict == "not testable here" and "also replayed" in found.reason, claim
    for claim in ("drift.fixed", "drift.moves"):
        found = verdict(alone, claim)
        assert found.verdict == "not testable here" and found.reason.startswith("no prose was read"), claim


def with_windows(**floating):
    """A measurement with windows in twelve texts per model."""
    models = {"mdm": "planted-mdm", "arm": "planted-arm"}
    measured = drift.measure([planted(), planted(kind="arm", model="planted-arm")])
    values = {kind: given + 0.01 * np.random.default_rng(0).standard_normal(12) for kind, given in floating.items()}
    columns = {
        "window_floating": np.concatenate(list(values.values())),
        "window_moved": np.concatenate(list(values.values())) / 10,
        "window_model": np.repeat([models[kind] for kind in values], 12).astype(object),
        "window_kind": np.repeat(list(values), 12).astype(object),
        "window_text": np.tile([f"text {n}" for n in range(12)], len(values)).astype(object),
    }
    return measured.assign({name: ("text", values) for name, values in columns.items()})


def test_movement_is_compared_by_windows_of_the_same_prose():
    moves, fixed = CLAIMS["drift.moves"], CLAIMS["drift.fixed"]
    apart = moves.verdict(with_windows(mdm=0.4, arm=0.05), mdm="planted-mdm", arm="planted-arm")
    assert (apart.verdict, apart.n, apart.models) == ("holds", 12, ("planted-mdm", "planted-arm"))
    assert apart.value == pytest.approx(0.35) and apart.details["moved attention"][0] == pytest.approx(0.035)
    assert moves.verdict(with_windows(mdm=0.1, arm=0.05)).verdict == "fails"
    assert fixed.verdict(with_windows(mdm=0.4, arm=0.05)).verdict == "holds"
    assert fixed.verdict(with_windows(mdm=0.4, arm=0.3)).verdict == "fails"
    unread = moves.verdict(with_windows(mdm=0.4), mdm="planted-mdm", arm="planted-arm")
    assert unread.reason == "no prose was read with planted-arm"


def test_renewal_is_beyond_the_untrained_network_and_stops_at_the_end_token():
    held = verdict(own_and_replayed(move_at(6), untrained=sink), "drift.renewal")
    assert held.verdict == "holds" and held.value == pytest.approx(1.0)
    assert verdict(own_and_replayed(move_at(6), untrained=move_at(6)), "drift.renewal").verdict == "fails"
    trace = planted(anchors=move_at(3), noise=0.0)  # moves after three of twelve steps
    P, end = trace.prompt_length, int(trace.data["final_tokens"].values[0])
    trace.data["committed_at"].values[P:] = [0, 1, 2, *range(3, 12)]
    trace.data["final_tokens"].values[P + 2 :] = end  # the answer ends with its third token; the rest is fill
    trace.data.attrs["special_ids"] = f"[{end}]"
    assert drift.measure(trace)["renewed"].item() == pytest.approx(0.0)


def test_a_weak_anchor_that_moves_counts_less_than_a_strong_one_that_stays():
    def plan(step, layer):
        return {5: 0.5} if layer else {5 if step < 6 else 40: 0.1}

    found = drift.measure(planted(layers=2, anchors=plan, noise=0.0))
    np.testing.assert_allclose(found["renewal"], [[1.0, 0.0]], atol=1e-6)
    assert found["renewed"].item() == pytest.approx(0.1 / 0.6, rel=1e-4)


def test_an_instruction_that_moves_the_anchors_is_compared_with_other_words():
    query = 67  # a token of the question
    plans = {"own": lambda s, la: {query: 0.5}, "moved": lambda s, la: {query + 2: 0.5}}
    region = next(r for r in planted().regions if r.name == "query")
    assert region.start <= query and query + 2 < region.end
    held = own_and_replayed(plans["own"], other_words=plans["own"], another_task=plans["moved"])
    assert verdict(held, "drift.instruction").verdict == "holds"
    same = own_and_replayed(plans["own"], other_words=plans["moved"], another_task=plans["moved"])
    assert verdict(same, "drift.instruction").verdict == "fails"


def test_claims_on_layers():
    by_layer = [planted(seed=i, anchors=lambda step, layer: {7 * layer: 0.5}) for i in range(12)]
    still = [planted(seed=i) for i in range(12)]
    assert verdict(by_layer, "drift.layers").verdict == "holds"
    assert verdict(still, "drift.layers").verdict == "fails"
    arm = [planted(seed=i, kind="arm", model="arm") for i in range(12)]
    assert verdict([*by_layer, *arm], "drift.layers_more").verdict == "holds"
    assert verdict([*still, *arm], "drift.layers_more").verdict == "fails"


def test_spread_is_the_share_of_written_positions():
    wide = [planted(seed=i, anchors=lambda step, layer: {}, noise=0.0) for i in range(12)]
    narrow = [planted(seed=i, model="arm", kind="arm", anchors=lambda step, layer: {0: 0.9}) for i in range(12)]
    found = verdict([*wide, *narrow], "drift.spread")
    assert found.verdict == "holds" and found.details["MDM"] == pytest.approx(1.0, abs=1e-4)
    on_masks = planted(anchors=lambda step, layer: {}, noise=0.0)
    rows, committed = on_masks.data["received_writing"].values, on_masks.data["committed_at"].values
    masked_ST = committed >= np.arange(len(rows))[:, None]
    rows[:] = np.where(masked_ST, 10.0, 1.0)[:, None]  # what masks receive does not count
    rows /= rows.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(drift.measure(on_masks)["spread"], 1.0, atol=1e-5)


def test_tasks_with_anchors_of_their_own_are_told_apart_and_random_tasks_are_not():
    rng = np.random.default_rng(0)
    tasks, lengths = np.array(["a", "b"] * 12), np.repeat([4, 5], 12)
    apart = np.eye(5)[np.where(tasks == "a", 0, 1)]
    found = definitions.length_matched_tasks(apart, tasks, lengths)
    assert found[:2] == (1.0, 0.0) and found[3] < 0.01
    between, within, _, p = definitions.length_matched_tasks(np.eye(5)[rng.integers(0, 5, 24)], tasks, lengths)
    assert p > 0.05 and abs(between - within) < 0.2
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
    found = verdict([planted(anchors=wandering()), planted(model="arm", kind="arm")], "drift.layers_more")
    assert found.verdict == "not testable here" and "at least 12" in found.reason
    alone = verdict([planted(seed=i) for i in range(12)], "drift.layers_more")
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


@pytest.mark.parametrize(
    ("sample_id", "task"),
    [
        ("world:fresh, short, fresh-test-0", "question"),
        ("mine.jsonl, passages, q1", "mine.jsonl"),
        ("q1", "one data set"),
        ("", "one data set"),
    ],
)
def test_the_id_of_a_sample_is_no_task(sample_id: str, task: str) -> None:
    trace = planted()
    trace.data.attrs["sample_id"] = sample_id
    assert task_of(trace) == task
