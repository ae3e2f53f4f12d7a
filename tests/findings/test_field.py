"""The findings of other papers on traces with planted properties."""

from __future__ import annotations

import json

import numpy as np
import pytest

from floatlens.attention.statistics.locality import REACH
from floatlens.errors import FloatLensError
from floatlens.findings import cache, decision, locality, massive, other_papers, reuse, similarity, softness, values
from floatlens.findings.finding import CLAIMS, FINDINGS, Claim
from floatlens.findings.verdict import change_under, correct_primary, mean_of
from floatlens.stats import interval_of_mean, p_value
from tests.findings.planted import planted, wandering

RNG = np.random.default_rng(0)


def verdict(id: str, traces: list, **about: str) -> str:
    return CLAIMS[id].verdict(FINDINGS[CLAIMS[id].finding].measure(traces), **about).verdict


def several(**plan: object) -> list:
    return [planted(seed=i, **plan) for i in range(12)]  # type: ignore[arg-type]


def test_the_attended_position_is_found_to_change_least_and_deep_layers_most():
    traces = several(anchors=lambda step, layer: {5: 0.5})  # planted: change falls with attention and grows with depth
    found = cache.measure(traces)
    np.testing.assert_allclose(found["rank"], 0.5)
    steady = np.broadcast_to(RNG.random(30), (3, 2, 30))
    np.testing.assert_allclose(reuse.attended_correlation(steady, -steady), -1.0)
    assert [verdict(f"cache.{name}", traces) for name in ("anchor", "deep", "few")] == [
        "holds",
        "holds",
        "fails",
    ]
    share = (traces[0].data["key_change"].values[1:] < 0.2).mean(axis=(0, 2))
    np.testing.assert_allclose(found["reusable"].sel(threshold=0.2)[0], share)


def test_a_position_like_any_other_ranks_in_the_middle():
    a, change = RNG.random((200, 1, 50)), RNG.random((200, 1, 50))
    assert abs(reuse.rank_of_attended(a, change)[0]) < 0.1
    assert reuse.rank_of_attended(a, np.ones_like(change))[0] == 0.0  # ties count half
    assert np.isnan(reuse.rank_of_attended(a, np.full_like(change, np.nan))).all()


def test_a_model_with_a_cache_of_its_own_has_no_drift():
    traces = several(kind="arm", model="arm")
    found = cache.measure(traces)
    assert np.isnan(found["reusable"]).all()
    assert cache.sentences(found) == []
    assert all(v.n == 0 and "no MDM" in v.reason for v in cache.claims(found))


def test_what_stays_of_a_heads_attention_is_what_was_planted():
    traces = several(anchors=lambda step, layer: {4: 0.6} if step < 6 else {8: 0.6}, noise=0.0)
    found = similarity.measure(traces)
    np.testing.assert_allclose(found["overlap"], 0.9, rtol=1e-6)
    length = traces[0].data.sizes["position"]
    even = 0.4 / (length - 1)  # one anchor of 0.6, the rest evenly
    np.testing.assert_allclose(found["lasting"], (length - 2) * even + 2 * even, atol=1e-5)
    assert verdict("similarity.steps", traces) == "holds"
    for trace in traces:
        trace.data["step_similarity"][1:] = np.linspace(0.5, 0.9, 11)[:, None, None]
    assert verdict("similarity.settles", traces) == "holds"
    assert verdict("similarity.steps", traces) == "fails"


def test_a_planted_massive_activation_is_found_at_its_position_and_in_its_channel():
    traces = several(anchors=lambda step, layer: {5: 0.5})
    found = massive.measure(traces)
    np.testing.assert_allclose(found["peak"], np.log10(5010), rtol=1e-5)
    assert (found["channel"] == 7).all()
    assert ((found["one_channel"] > 0.8) & (found["one_channel"] < 1)).all()
    length = traces[0].data.sizes["position"]
    np.testing.assert_allclose(found["at_anchor"][:, :-1], 1 - 1 / length)
    assert np.isnan(found["at_anchor"][:, -1]).all()
    assert [verdict(f"massive.{name}", traces) for name in ("large", "anchors", "one")] == ["holds"] * 3
    for trace in traces:  # as large as before, but everywhere else
        trace.data["massive_ratio"] = trace.data["massive_ratio"].max() - trace.data["massive_ratio"] + 2000
    assert verdict("massive.anchors", traces) == "fails"


def test_the_norms_of_values_are_those_of_both_groups():
    trace = planted(anchors=lambda step, layer: {7: 0.5})
    norm = np.full(trace.data["value_norm"].shape, 2.0)
    norm[..., 7] = 0.5
    trace.data["value_norm"] = trace.data["value_norm"].copy(data=norm)
    found = values.measure(trace)
    np.testing.assert_allclose(found["smaller"], 2.0)
    np.testing.assert_allclose([found["anchors"][0, 0], found["others"][0, 0]], [0.5, 2.0])
    assert np.isnan(values.measure(planted(anchors=lambda step, layer: {}, noise=0.0))["smaller"]).all()


def test_uniform_attention_has_no_neighbourhood_and_masks_count_where_they_are_far():
    traces = several(steps=24)
    found = locality.measure(traces)
    np.testing.assert_allclose(found["near"], 0.01, atol=1e-6)  # planted beyond uniform attention
    np.testing.assert_allclose(found["within"] - found["uniform"], 0.01, atol=1e-6)
    at = REACH.index(other_papers.FAR)
    planted_share = traces[0].data["mask_attention"].values[0, 0, 0, at]
    np.testing.assert_allclose(found["far_masks"], planted_share, rtol=1e-6)
    assert verdict("locality.near", traces) == "fails"
    assert verdict("locality.masks", traces) == "holds"
    assert np.isnan(locality.measure(planted(steps=6))["far_masks"]).all()  # six masks are never 16 apart


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_the_planted_layer_of_decision_is_found(kind):
    traces = several(kind=kind, model=kind, layers=6, copying=(2, 1))
    found = decision.measure(traces)
    np.testing.assert_allclose(found["decision_depth"], 3 / 5)
    np.testing.assert_allclose(found["decided"], np.broadcast_to([0, 0, 0, 1, 1, 1], (12, 6)))
    np.testing.assert_allclose(found["heads_depth"], 2 / 5, atol=1e-6)
    assert verdict("decision.heads", traces, model=kind) == "holds"  # 0.2 below: between 0 and 0.25
    if kind == "mdm":
        np.testing.assert_allclose(found["early"], 1.0)
    else:  # one step per token: there is nothing earlier
        assert np.isnan(found["early"]).all()


def test_heads_far_below_the_decision_or_above_it_are_not_just_below():
    for copying in ((0, 1), (5, 0)):
        assert verdict("decision.heads", several(layers=6, copying=copying), model="planted-mdm") == "fails"


def test_a_token_that_leads_late_is_not_known_early():
    trace = planted(steps=12)
    for position in np.flatnonzero(trace.data["committed_at"].values >= 0):
        at = int(trace.data["committed_at"].values[position])
        trace.data["lens_token"][:at, :, position] = -1.0  # leads at its commit only
    found = decision.measure(trace)
    assert found["early"].item() == 0.0
    assert np.isfinite(found["leads"]).all() and float(found["leads"][0, -1]) > float(found["leads"][0, 0]) == 0.0


def test_a_sink_that_stays_neither_moves_nor_varies():
    stays, moves = (several(model=name, anchors=plan, noise=0.0) for name, plan in SINKS.items())
    still, away = softness.measure(stays), softness.measure(moves)
    np.testing.assert_allclose(still["moves"], 0.0)
    np.testing.assert_allclose(still["spread"], 0.0)
    # One large value among T: its z is sqrt(T - 1).
    length = stays[0].data.sizes["position"]
    np.testing.assert_allclose(still["lasting"], 1 / (1 + np.exp(-np.sqrt(length - 1))), rtol=1e-4)
    np.testing.assert_allclose(away["moves"], 11 / 12)
    np.testing.assert_allclose(away["spread"], np.std(6 + 3 * np.arange(12)) / length, rtol=1e-6)
    assert float(away["lasting"].max()) < float(still["lasting"].min()) - 0.1
    assert verdict("softness.moves", moves) == "holds" and verdict("softness.moves", stays) == "fails"


SINKS = {"stays": lambda step, layer: {0: 0.5}, "moves": wandering(others=1)}


def test_the_mdms_sink_is_compared_with_the_arms_question_by_question():
    traces = several(anchors=wandering(others=1)) + several(kind="arm", model="arm")
    assert verdict("softness.variance", traces) == "holds" == verdict("softness.lasting", traces)


@pytest.mark.parametrize("name", [name for name in FINDINGS if FINDINGS[name].records])
def test_a_trace_without_the_statistics_is_refused_by_their_names(name):
    trace = planted()
    missing = [
        n for n in trace.data.data_vars if n in ("key_change", "step_similarity", "hidden_norm", "near", "lens_token")
    ]
    trace.data = trace.data.drop_vars(missing)
    with pytest.raises(FloatLensError, match="trace again with --record default,"):
        FINDINGS[name].measure(trace)


# The correction for several claims


def test_the_p_value_of_a_verdict_decides_as_its_interval_does():
    for value in (0.15, 0.25, 0.35):
        found = np.clip(value + 0.12 * np.random.default_rng(3).standard_normal(24), -1, 1)
        measured = values.measure(several()).isel(sample=np.zeros(24, int))
        measured = measured.assign_coords(sample_id=("sample", [str(i) for i in range(24)]))
        about = {"primary": True, "test": lambda m, model=None, f=found: mean_of(m, f, model=model)}
        claim = Claim("x.y", "x", "s", "", 0.25, **about)
        made = claim.verdict(measured)
        assert (made.verdict != "inconclusive") == (made.p < 0.05)
        assert made.p == pytest.approx(p_value(interval_of_mean, found, null=0.25))


def test_a_claim_with_two_conditions_holds_only_if_both_do():
    measured = values.measure(several())
    found = np.full(12, 0.2) + 0.02 * np.random.default_rng(1).standard_normal(12)
    claim = Claim("x.y", "x", "s", "", 0.0, mean_of, below=0.25)
    assert claim.judge(mean_of(measured, found)) == ("holds", "the interval lies within 0 to 0.25")
    assert claim.judge(mean_of(measured, found + 0.2)) == ("fails", "the interval lies outside 0 to 0.25")
    assert claim.judge(mean_of(measured, found - 0.2))[0] == "inconclusive"


def test_of_many_claims_without_an_effect_holm_lets_few_survive():
    rng, survived, plain = np.random.default_rng(5), 0, 0
    for _ in range(40):
        claims = []
        for _ in range(30):
            found = rng.standard_normal(24)
            low, high = interval_of_mean(found)[1]
            said = "holds" if low > 0 else "fails" if high < 0 else "inconclusive"
            p = p_value(interval_of_mean, found, null=0.0)
            claims.append({"primary": True, "p": p, "verdict": said, "reason": ""})
        plain += any(claim["verdict"] != "inconclusive" for claim in claims)
        correct_primary(claims)
        survived += any(claim["verdict"] != "inconclusive" for claim in claims)
    assert plain > 25  # of 40 families, most have a verdict by chance alone
    assert survived <= 6  # about 5 % of families: 2 of 40, and 7 with a probability of 0.003


def test_exploratory_claims_never_change_a_primary_verdict():
    one = {"primary": True, "p": 0.02, "verdict": "holds", "reason": ""}
    others = [{"primary": False, "p": None, "verdict": "fails", "reason": ""} for _ in range(200)]
    claims = [dict(one), *others]
    correct_primary(claims)
    correct_primary(claims)  # a report corrects again what a study has corrected
    assert claims == [one, *others]
    crowd = [dict(one) for _ in range(3)]
    correct_primary(crowd)
    assert [claim["verdict"] for claim in crowd] == ["inconclusive"] * 3


def test_scores_under_two_conditions_are_paired_and_binary():
    measured = values.measure(several())
    before, under = np.ones(12), np.array([0.0] * 9 + [1.0] * 3)
    found = change_under(measured, before, under, mdm=None)
    assert found.value == 0.75 and found.n == 12
    assert found.interval == pytest.approx((0.323, 0.963), abs=1e-3)  # Bonett and Price
    assert json.dumps(found.details) == '{"first": 1.0, "last": 0.25}'
