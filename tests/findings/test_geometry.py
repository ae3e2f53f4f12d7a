"""The split of the anchors' advantage is exact, and correct on known cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from floatlens.errors import FloatLensError
from floatlens.findings.geometry import factors, geometry, shares_by_half
from floatlens.trace.summarise import split
from tests import golden_data
from tests.findings.planted import planted, wandering

ANCHOR = np.array([True, True, False, False, False])


def test_keys_that_differ_in_norm_alone_have_no_angle_part():
    norm, cosine = np.array([4.0, 6.0, 2.0, 2.0, 2.0]), np.full(5, 0.5)
    advantage, from_norm, from_angle = split(norm * cosine, norm, ANCHOR, ~ANCHOR)
    assert (advantage, from_norm, from_angle) == (1.5, 1.5, 0.0)


def test_keys_that_differ_in_angle_alone_have_no_norm_part():
    norm, cosine = np.full(5, 2.0), np.array([0.9, 0.7, 0.1, -0.1, 0.0])
    advantage, from_norm, from_angle = split(norm * cosine, norm, ANCHOR, ~ANCHOR)
    assert advantage == pytest.approx(1.6) == from_angle
    assert from_norm == pytest.approx(0.0)


def test_the_split_is_the_mean_shapley_value_over_all_pairs():
    rng = np.random.default_rng(3)
    norm, cosine = rng.random(5) + 0.5, rng.uniform(-1, 1, 5)
    pairs = [(i, j) for i in range(2) for j in range(2, 5)]
    by_hand_norm = np.mean([(norm[i] - norm[j]) * (cosine[i] + cosine[j]) / 2 for i, j in pairs])
    by_hand_angle = np.mean([(cosine[i] - cosine[j]) * (norm[i] + norm[j]) / 2 for i, j in pairs])
    _, from_norm, from_angle = split(norm * cosine, norm, ANCHOR, ~ANCHOR)
    assert from_norm == pytest.approx(by_hand_norm) and from_angle == pytest.approx(by_hand_angle)


values = arrays(np.float64, (2, 5), elements=st.floats(-1, 1))


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_the_parts_always_sum_to_the_advantage(norms, cosines):
    norm = np.abs(norms)
    advantage, from_norm, from_angle = split(norm * cosines, norm, ANCHOR, ~ANCHOR)
    np.testing.assert_allclose(from_norm + from_angle, advantage, atol=1e-12)


def test_the_measured_parts_sum_to_the_advantage_for_any_trace():
    for trace in (planted(anchors=wandering()), planted(kind="arm")):
        found = geometry(trace)
        assert np.isfinite(found["advantage"]).all()
        np.testing.assert_allclose(found["norm_part"] + found["angle_part"], found["advantage"], rtol=1e-5)


def test_without_anchors_there_is_no_advantage_to_split():
    found = geometry(planted(anchors=lambda step, layer: {}, noise=0.0))
    assert found["advantage"].isnull().all() and found["angle_part"].isnull().all()


def test_a_zero_query_or_key_has_no_direction():
    score, norm, cosine = factors(np.zeros((2, 3, 4)), np.ones((1, 3, 4)))
    assert not score.any() and not norm.any() and not cosine.any()


def test_the_claims_follow_what_was_planted():
    """Anchors stand out by norm (16 against 8) and cosine (0.6 against 0.1) in layer 0, by cosine alone in the last."""
    traces = [planted(seed=i, anchors=wandering()) for i in range(12)]
    found = {v.id: v for v in geometry.claims(traces)}
    assert {name: v.verdict for name, v in found.items()} == {
        "geometry.angle": "holds",
        "geometry.turn": "holds",
    }
    assert found["geometry.angle"].details["share of the angle, deep half"][0] == pytest.approx(0.95, abs=0.1)
    for trace in traces:  # turned upside down, the norm counts in deep layers and not in shallow ones
        for name in ("qk", "qk_norm", "qk_cos"):
            trace.data[name].values[:] = trace.data[name].values[:, ::-1].copy()
    assert {v.id: v.verdict for v in geometry.claims(traces)}["geometry.turn"] == "fails"


def shares(angle: list[float], norm: list[float]) -> dict[str, float]:
    parts = {"angle_part": np.array(angle), "norm_part": np.array(norm)}
    return shares_by_half({**parts, "advantage": parts["angle_part"] + parts["norm_part"]}, np.array([0.0, 1.0]))


def test_a_part_may_exceed_the_whole():
    found = shares([0.6, 1.34], [0.4, -0.34])
    assert (found["angle_shallow"], found["angle_deep"]) == pytest.approx((0.6, 1.34))
    assert found["norm_deep"] == pytest.approx(-0.34)
    none = shares([0.6, 1.0], [-1.6, 0.0])
    assert np.isnan(none["angle_shallow"])  # keys that are no advantage have no share in one
    assert none["angle_deep"] == 1.0


def test_the_bounded_share_is_that_of_the_published_layers_and_exists_where_the_parts_cancel():
    found = shares([0.62, 1.34], [0.38, -0.34])  # layers 11 and 28 of LLaDA
    assert found["turn"] == pytest.approx(1.34 / 1.68 - 0.62) == pytest.approx(0.178, abs=1e-3)
    cancelled = shares([1.0, 1.0], [-1.0, -1.0])
    assert (cancelled["bounded_shallow"], cancelled["bounded_deep"]) == (0.5, 0.5)


def test_a_trace_without_scores_says_what_to_record():
    trace = planted()
    trace.data = trace.data.drop_vars("qk")
    with pytest.raises(FloatLensError, match=r"needs qk.*record"):
        geometry(trace)


def test_maps_show_queries_and_keys_where_they_were_recorded():
    """With a cache each position is recorded at the step that computed it; the map puts them together."""
    trace = planted(kind="arm", steps=3, layers=2)
    rng = np.random.default_rng(0)
    length = trace.data.sizes["position"]
    q, k = rng.standard_normal((4, length, 8)), rng.standard_normal((2, length, 8))
    computed_at = np.maximum(np.arange(length) - trace.prompt_length + 1, 0)
    mine = computed_at == np.arange(3)[:, None]
    cached = [np.where(mine[:, None, None, :, None], x, np.nan) for x in (q, k)]
    trace.data = trace.data.assign(
        queries=(("step", "queries_layer", "head", "position", "dim"), cached[0]),
        keys=(("step", "keys_layer", "kv_head", "position", "dim"), cached[1]),
    ).assign_coords(queries_layer=[1], keys_layer=[1])
    cells = geometry.figure(trace, view="heatmap", layer=1, head=3, backend="none")
    score = cells[cells["factor"] == "qk"].pivot(index="row", columns="position", values="value").to_numpy()
    known = computed_at < 3  # the last token is written, never read
    seen = np.tril(np.ones_like(score, bool)) & known & known[:, None]
    np.testing.assert_allclose(score[seen], (q[3] @ k[1].T)[seen])
    assert np.isnan(score[~seen]).all()
    with pytest.raises(FloatLensError, match="queries of layer 0 was not recorded"):
        geometry.figure(trace, view="heatmap", layer=0, head=3)


def test_a_map_of_a_head_uses_its_own_keys_when_only_some_heads_were_recorded():
    """Query head h uses key head h // (H / K), whichever heads the trace holds."""
    lens = golden_data.lens("llada_gqa")
    H, K = lens.shape["heads"], lens.shape["kv_heads"]
    options = {"max_new_tokens": 4, "steps": 1, "layers": [0], "matrices": ["queries", "keys"]}
    some, all_of_them = lens.trace([4, 5, 6, 7], heads=[H - 2, H - 1], **options), lens.trace([4, 5, 6, 7], **options)
    for head in (H - 2, H - 1):
        cells = geometry.figure(some, view="heatmap", layer=0, head=head, backend="none")
        score = cells[cells["factor"] == "qk"].pivot(index="row", columns="position", values="value").to_numpy()
        queries = all_of_them.data["queries"].sel(head=head).values[0, 0]
        keys = some.data["keys"].values[0, 0, head // (H // K)]
        np.testing.assert_allclose(score, queries @ keys.T, rtol=1e-4, atol=1e-5)
    assert H > K > 1


@pytest.mark.parametrize(
    ("choice", "said"), [({"head": 9}, "head 9 was not recorded"), ({"step": 99}, "step 99 was not")]
)
def test_a_head_or_step_that_was_not_recorded_is_named(choice, said):
    with pytest.raises(FloatLensError, match=said):
        geometry.figure(planted(), view="heatmap", **choice)
