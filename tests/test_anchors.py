"""The anchor rules on cases that can be computed by hand."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from floatlens import FloatLensError, parse_rule
from floatlens.anchors import RULES, baseline, find_anchors, key_visibility, register_rule
from tests.registries import restored

UNIFORM = np.full(20, 1 / 20)
SINK = np.array([0.81] + [0.01] * 19)


@pytest.mark.parametrize("rule", ["sigma(3)", "excess(3)", "share(0.3)"])
def test_uniform_attention_has_no_anchor(rule: str) -> None:
    assert not parse_rule(rule)(UNIFORM).any()


@pytest.mark.parametrize("rule", ["sigma(3)", "excess(3)", "share(0.3)", "top(1)", "first"])
def test_one_sink_is_the_anchor(rule: str) -> None:
    np.testing.assert_array_equal(np.flatnonzero(parse_rule(rule)(SINK)), [0])


def test_excess_is_on_sums_since_on_means_it_could_never_fire() -> None:
    # column sum 16.2 against 0.2 for the others: above them by 16, and by 0.8 only if means were meant
    assert parse_rule("excess(15.9)")(SINK)[0] and not parse_rule("excess(16.1)")(SINK)[0]


def test_share_counts_only_queries_that_may_see_the_key() -> None:
    received = np.array([0.4, 0.2, 0.4])
    visible = np.array([1.0, 2 / 3, 1 / 3])
    np.testing.assert_array_equal(parse_rule("share(0.35)")(received, visible), [True, False, True])


def test_a_minimum_is_explicit_and_recorded() -> None:
    rule = parse_rule("sigma(3, minimum=2)")
    assert rule.id == "sigma(k=3, minimum=2)"
    np.testing.assert_array_equal(np.flatnonzero(rule(UNIFORM)), [0, 1])


@given(arrays(float, 12, elements=st.floats(0.001, 1)), st.integers(0, 6))
def test_absent_positions_change_nothing(raw: np.ndarray, absent: int) -> None:
    received = raw / raw.sum()
    padded = np.concatenate([received, np.full(absent, np.nan)])
    for rule in ("sigma(2)", "excess(1)", "top(3)", "first", "share(0.1)", "sigma(9, minimum=2)"):
        found = parse_rule(rule)(padded)
        np.testing.assert_array_equal(found[:12], parse_rule(rule)(received))
        assert not found[12:].any()


@pytest.mark.parametrize(
    "rule", ["sigmoid(3)", "sigma(x)", "sigma(k=)", "top(0)", "top(1.5)", "sigma(3, 4)", "", "first(2)"]
)
def test_an_unknown_rule_is_named(rule: str) -> None:
    with pytest.raises(FloatLensError, match="anchor rule"):
        parse_rule(rule)


def test_a_function_serves_as_a_rule() -> None:
    rule = parse_rule(lambda received: received > 0.5)
    np.testing.assert_array_equal(np.flatnonzero(rule(SINK)), [0])
    assert rule.id == "function"


def test_a_registered_rule_is_used_by_its_name_with_its_settings() -> None:
    with restored(RULES):

        @register_rule
        def beyond(a: np.ndarray, visible: np.ndarray, *, times: float = 2.0, most: int = 3) -> np.ndarray:
            return (a > times / len(a)) & (np.argsort(np.argsort(-a, kind="stable"), kind="stable") < most)

        assert parse_rule("beyond(1, most=2)").id == "beyond(times=1, most=2)"
        received = np.array([0.3, 0.3, 0.3, 0.1])
        np.testing.assert_array_equal(parse_rule("beyond(1, most=2)")(received), [True, True, False, False])
        with pytest.raises(FloatLensError, match="most must be an integer"):
            parse_rule("beyond(most=1.5)")
        with pytest.raises(FloatLensError, match="already registered"):
            register_rule(rename(lambda a: a > 1, "sigma"))
    assert "beyond" not in RULES


def test_a_rule_that_returns_something_else_is_named() -> None:
    with pytest.raises(FloatLensError, match=r"anchor rule 'function' returned float64 of shape \(\); expected bool"):
        parse_rule(lambda received: received.max())(SINK)


def rename(function: Any, name: str) -> Any:
    function.__name__ = name
    return function


def test_a_causal_model_sees_each_key_from_the_queries_at_or_after_it() -> None:
    # Of three queries, key 0 is seen by three, key 1 by two, key 2 by one.
    np.testing.assert_allclose(key_visibility(np.ones(3, bool), "causal"), np.tril(np.ones((3, 3))).mean(0))
    received = np.array([0.4, 0.2, 0.4])
    np.testing.assert_array_equal(find_anchors(received, "share(0.5)", "causal"), [False, False, True])
    np.testing.assert_array_equal(find_anchors(received, "share(0.3)", "bidirectional"), [True, False, True])
    np.testing.assert_array_equal(find_anchors(received, "share(0.3)", "block"), [True, False, True])


def test_heads_of_both_directions_favour_both_ends_and_that_is_no_anchor() -> None:
    """Row-uniform weights, half of the heads forwards and half backwards, by the definition."""
    ones = np.ones((20, 20))
    forwards, backwards = np.tril(ones), np.triu(ones)
    weights = [mask / mask.sum(1, keepdims=True) for mask in (forwards, backwards)]
    received = np.mean(weights, 0).mean(0)
    np.testing.assert_allclose(baseline(received, "two-way"), received)
    assert not find_anchors(received, "sigma(2)", "two-way").any()
    seen = np.mean([forwards, backwards], 0).mean(0)
    np.testing.assert_allclose(key_visibility(np.ones(20, bool), "two-way"), seen)
