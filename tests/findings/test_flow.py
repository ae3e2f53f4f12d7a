"""Flow between regions, on cases small enough to compute by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from floatlens.errors import FloatLensError
from floatlens.findings.definitions import rollout_while_rows_differ
from floatlens.findings.flow import flow
from tests.findings.planted import planted


def rollout(flows, residual=True):
    return rollout_while_rows_differ(flows, 0.0, residual)[0]


def test_two_regions_through_two_layers_by_hand():
    one, two = np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([[0.5, 0.5], [1.0, 0.0]])
    half = [(m + np.eye(2)) / 2 for m in (one, two)]
    np.testing.assert_allclose(rollout(np.array([one, two])), half[1] @ half[0])
    np.testing.assert_allclose(rollout(np.array([one, two]), residual=False), two @ one)


def test_a_region_that_is_not_there_stays_missing_and_harms_no_other():
    flows = np.array([[[0.5, 0.5, np.nan], [0.25, 0.75, np.nan], [np.nan] * 3]] * 2)
    found = rollout(flows)
    assert np.isnan(found[2]).all() and np.isnan(found[:, 2]).all()
    np.testing.assert_allclose(found[:2, :2], rollout(flows[:, :2, :2]))


matrices = arrays(np.float64, (3, 4, 4), elements=st.floats(0, 1))


@settings(max_examples=50, deadline=None)
@given(matrices)
def test_rows_of_a_rollout_sum_to_one(weights):
    rows = weights + 1e-3
    rows /= rows.sum(axis=-1, keepdims=True)
    for residual in (True, False):
        np.testing.assert_allclose(rollout(rows, residual=residual).sum(axis=-1), 1.0)


def test_the_gold_document_is_named_and_drawn_to():
    found = flow([planted(seed=i, gold=i + 1, gold_pull=0.5) for i in range(4)])
    assert found["gold"].values.tolist() == ["doc1", "doc2", "doc3", "doc4"]
    assert found["gold_position"].values.tolist() == [1, 2, 3, 4]
    assert (found["follows_rollout"] > 0.1).all()
    np.testing.assert_allclose(found["rollout"].sum("region_to"), 1.0)
    whole = flow(planted(seed=2, gold=3, gold_pull=0.5), stop=0.0)
    by_hand = rollout(planted(seed=2, gold=3, gold_pull=0.5).data["flow"].values[5])
    answer, query = (whole["region"].values.tolist().index(name) for name in ("answer", "query"))
    assert whole["steps_to_query"].values[0, 5] == pytest.approx(by_hand[answer, query], rel=1e-6)
    assert whole["rollout_layer"].item() == 5


def test_the_rollout_stops_where_its_rows_no_longer_differ():
    trace = planted(layers=12)
    count = trace.data.sizes["region"]
    trace.data["flow"].values[:] = 1 / count  # after n layers two rows differ by 2**-n
    assert flow(trace)["rollout_layer"].item() == 2
    assert flow(trace, stop=0.01)["rollout_layer"].item() == 5


def writing_to(trace, documents):
    """Let the writing rows put this much attention on each token of the named documents, and little elsewhere."""
    rows = np.full(trace.data["received_writing"].shape, 0.001)
    for region in trace.regions:
        rows[..., region.start : region.end] = documents.get(region.name, 0.001)
    trace.data["received_writing"].values[:] = rows
    return trace


def test_the_claim_compares_attention_per_token_of_a_document():
    found = flow(writing_to(planted(gold=2, docs=4), {"doc1": 0.02, "doc2": 0.06, "doc3": 0.02, "doc4": 0.02}))
    assert found["follows"].item() == pytest.approx((0.06 - 0.02) / 0.03, rel=1e-5)


def test_the_answer_of_an_arm_counts_from_the_step_at_which_it_exists():
    found = flow(planted(kind="arm"))
    answer = list(found["region"].values).index("answer")
    assert np.isnan(found["steps_to_gold"].values[0, 0])
    assert np.isfinite(found["rollout"].values[0, answer]).all()


def test_a_row_of_zeros_is_an_answer_that_is_not_there_yet():
    trace, same = planted(kind="arm"), planted(kind="arm")
    same.data["flow"].values[:] = np.nan_to_num(same.data["flow"].values)
    np.testing.assert_allclose(flow(trace)["rollout"], flow(same)["rollout"])


def canvas_of(trace):
    """The same trace with rows of the answer and of the template only: the prompt was read before the first step."""
    regions = list(trace.data["region"].values)
    trace.data["flow"].values[:, :, [i for i, name in enumerate(regions) if name not in ("answer", "other")]] = 0.0
    return trace


@pytest.mark.parametrize("residual", [True, False])
def test_a_prompt_without_rows_keeps_what_the_answer_draws_from_it(residual):
    trace = canvas_of(planted(gold=2))
    found = flow(trace, residual=residual, stop=0.0, step=3)
    regions = list(found["region"].values)
    answer, other, gold = (regions.index(name) for name in ("answer", "other", "doc2"))
    share_A, share_O = 0.0, 0.0  # of the gold document in the two rows that exist, layer by layer
    for rows in trace.data["flow"].values[3].astype(float):
        parts = [rows[row, gold] + rows[row, answer] * share_A + rows[row, other] * share_O for row in (answer, other)]
        if residual:
            parts = [(part + share) / 2 for part, share in zip(parts, (share_A, share_O), strict=True)]
        share_A, share_O = parts
    rolled = found["rollout"].values[0]
    assert rolled[answer, gold] == pytest.approx(share_A, rel=1e-6)
    np.testing.assert_allclose(rolled[[answer, other]].sum(axis=-1), 1.0)
    assert np.isnan(rolled[regions.index("query")]).all()
    np.testing.assert_allclose(found["to_gold"].values[0], trace.data["flow"].values[3, :, answer, gold], rtol=1e-6)


def test_a_canvas_is_drawn_beside_a_model_whose_prompt_has_rows():
    traces = [canvas_of(planted(model="canvas", gold=2)), planted(model="whole", gold=2)]
    drawn = flow.figure(traces, backend="none")
    assert set(drawn.loc[drawn["model"] == "canvas", "region"]) == {"answer", "other"}
    assert set(drawn.loc[drawn["model"] == "canvas", "region_to"]) == set(
        drawn.loc[drawn["model"] == "whole", "region_to"]
    )
    assert flow.select(flow(traces), "rollout").sizes["sample"] == 2
    assert len(flow.figure(traces).axes) == 3  # two maps and their colour bar


def test_the_rollout_of_a_canvas_stops_where_its_own_rows_no_longer_differ():
    trace = planted(layers=12)
    trace.data["flow"].values[:] = 1 / trace.data.sizes["region"]
    assert flow(canvas_of(trace))["rollout_layer"].item() == 2  # two rows differ by 2**-n, as in a whole model


def test_the_claim_needs_gold_at_more_than_one_position():
    swept = [writing_to(planted(seed=i, gold=1 + i % 4), {f"doc{1 + i % 4}": 0.02}) for i in range(12)]
    assert flow.claim(swept).verdict == "holds"
    fixed = flow.claim([writing_to(planted(seed=i, gold=2), {"doc2": 0.02}) for i in range(12)])
    assert fixed.verdict == "not testable here" and "always doc2" in fixed.reason
    assert flow.claim([writing_to(planted(seed=i, gold=1 + i % 4), {}) for i in range(12)]).verdict == "fails"


def test_what_a_position_draws_by_itself_does_not_count_as_following():
    """Every sample draws to doc1, gold or not: over a full sweep it cancels."""
    traces = [writing_to(planted(seed=i, gold=1 + i % 4), {"doc1": 0.02}) for i in range(12)]
    assert flow.claim(traces).value == pytest.approx(0.0, abs=1e-6)


def test_a_step_that_is_not_there_is_named():
    with pytest.raises(FloatLensError, match="step 99 was not recorded"):
        flow(planted(), step=99)
