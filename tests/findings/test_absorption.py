"""Absorption on planted anchors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from floatlens.anchors import parse_rule
from floatlens.findings.absorption import COMMON_RULES as RULES
from floatlens.findings.absorption import absorb, absorption, table
from floatlens.findings.finding import CLAIMS
from tests.findings.planted import planted, wandering
from tests.oracle import causal_baseline


def test_a_planted_sink_absorbs_what_was_planted():
    found = absorption(planted(anchors=lambda step, layer: {4: 0.1 + 0.1 * layer}, layers=5), rule="top(1)")
    np.testing.assert_allclose(found["absorption"].squeeze(), [10, 20, 30, 40, 50], atol=1e-4)


def test_uniform_attention_absorbs_one_share_at_one_position_and_none_by_sigma():
    trace = planted(anchors=lambda step, layer: {}, noise=0.0)
    found = absorption(trace, rule=["sigma(3)", "first"])
    length = trace.data.sizes["position"]
    np.testing.assert_allclose(found["absorption"].sel(rule="first"), 100 / length, rtol=1e-5)
    np.testing.assert_allclose(found["absorption"].sel(rule="sigma(k=3)"), 0.0)


def test_the_table_puts_the_rules_side_by_side():
    traces = [planted(seed=i, anchors=lambda s, la, i=i: {0: 0.4 + 0.1 * i}) for i in range(2)]
    found = table(traces)
    assert list(dict.fromkeys(found["rule"])) == ["as published", *(parse_rule(r).id for r in RULES)]
    first = found[found["rule"] == "first"]
    np.testing.assert_allclose(first["mean"], 45.0, atol=1e-4)
    np.testing.assert_allclose(first["std"], 5.0, atol=1e-4)
    assert (first["n"] == 2).all()


@pytest.mark.parametrize("steps", [8, 32, 128])
def test_uniform_causal_attention_has_neither_anchor_nor_sink(steps):
    traces = [
        planted(seed=i, kind="arm", steps=steps, layers=2, heads=2, anchors=lambda s, la: {}, noise=0.0)
        for i in range(12)
    ]
    found = absorption.measure(traces)
    np.testing.assert_allclose(found["beyond"].sel(rule="sigma(k=3)"), 0.0)
    np.testing.assert_allclose(found["sink"], 0.0, atol=1e-4)
    assert (found["sink_raw"] > 2).all()  # by construction: more than one share of 100 or so
    assert CLAIMS["absorption.sink"].verdict(found).verdict == "fails"


def test_a_planted_sink_is_a_sink():
    traces = [planted(seed=i, kind="arm", anchors=lambda s, la: {0: 0.5}) for i in range(12)]
    found = CLAIMS["absorption.sink"].verdict(absorption.measure(traces))
    length = traces[0].data.sizes["position"]
    assert found.verdict == "holds"
    assert found.value == pytest.approx(50 - 100 * causal_baseline(length - 6)[0], abs=1.0)


def test_the_claim_is_the_papers_and_names_the_rules():
    mdm = [planted(seed=i, anchors=wandering(mass=0.2, others=1)) for i in range(12)]
    arm = [planted(seed=i, model="arm", kind="arm", anchors=lambda s, la: {0: 0.7}) for i in range(12)]
    found = absorption.claim([*mdm, *arm])
    assert found.verdict == "holds" and found.rule == "as published"
    assert found.value == pytest.approx(70 - 20, abs=2)  # position 0 of the ARM minus the strongest of the MDM
    assert {f"by {parse_rule(r).id}" for r in RULES} <= set(found.details)
    assert found.details["by sigma(k=3)"][0] < found.value  # position 0 has some by construction, which does not count
    turned = absorption.claim(
        [*(planted(seed=i, anchors=lambda s, la: {3: 0.9}) for i in range(12)), *arm], rule="top(1)"
    )
    assert turned.verdict == "fails" and turned.rule == "top(n=1)"


def test_a_claim_on_which_rules_disagree_depends_on_the_rule():
    """The MDM's attention is on three anchors, the ARM's on one: the strongest takes less, all of them take more."""
    mdm = [planted(seed=i, anchors=lambda s, la: {5: 0.2, 12: 0.2, 20: 0.2}) for i in range(12)]
    arm = [planted(seed=i, model="arm", kind="arm", anchors=lambda s, la: {0: 0.5}) for i in range(12)]
    found = absorption.claim([*mdm, *arm])
    assert found.verdict == "depends on the rule"
    assert found.reason.startswith("above 0 by as published") and "below 0 by sigma(k=3)" in found.reason


def test_published_curves_are_compared_by_relative_depth():
    for paper in (True, False):
        figure = absorption.figure([planted(seed=i) for i in range(2)], paper=paper)
        assert {axes.get_xlabel() for axes in figure.axes} == {"relative depth"}
        assert all(0 <= x <= 1 for axes in figure.axes for line in axes.lines for x in line.get_xdata())
        assert [axes.get_title(loc="left") for axes in figure.axes[1:3]] == ["sigma(k=3)", "excess(eps=3)"]
    data = absorption.figure(planted(), paper=True, backend="none")
    assert data[data["model"] == "LLaDA (paper)"]["layer"].max() == 31


profiles = arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(2, 40)), elements=st.floats(1e-6, 1.0))


@settings(max_examples=60, deadline=None)
@given(profiles, st.sampled_from([*RULES, "sigma(1, minimum=2)", "top(3)"]))
def test_absorption_is_a_percentage(weights, rule):
    a = weights / weights.sum(axis=-1, keepdims=True)
    found = absorb(a, parse_rule(rule)(a))
    assert (found >= 0).all() and (found <= 100).all()


@settings(max_examples=60, deadline=None)
@given(profiles, st.sampled_from(RULES), st.integers(1, 10))
def test_absorption_does_not_see_padding(weights, rule, padding):
    a = weights / weights.sum(axis=-1, keepdims=True)
    padded = np.concatenate([a, np.full((len(a), padding), np.nan)], axis=-1)
    np.testing.assert_allclose(absorb(padded, parse_rule(rule)(padded)), absorb(a, parse_rule(rule)(a)), rtol=1e-12)
