"""Intervals cover what they should, and p-values are those of the exact test."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from floatlens import stats


def test_the_interval_covers_the_true_mean_about_95_times_in_100():
    draw = np.random.default_rng(7)
    covered = 0
    for trial in range(300):
        found = stats.percentile_mean((draw.random(120) < 0.6).astype(float), seed=trial)
        covered += found.low <= 0.6 <= found.high
    assert 0.90 <= covered / 300 <= 0.99


def test_p_equals_the_exact_sign_flip_test():
    differences = np.array([1.0, 1.0, 0.5, -0.2, 0.0, 0.7, -1.0, 1.0])
    flips = [np.mean(differences * signs) for signs in product([1, -1], repeat=len(differences))]
    exact = np.mean(np.abs(flips) >= abs(differences.mean()) - 1e-12)
    assert stats.sign_flip_p(differences) == pytest.approx(exact)


def test_p_is_large_without_a_difference_and_small_with_one():
    draw = np.random.default_rng(3)
    ps = [stats.sign_flip_p(draw.choice([-1.0, 0.0, 1.0], 60), seed=i) for i in range(60)]
    assert np.mean(np.array(ps) < 0.05) < 0.15
    assert stats.sign_flip_p(np.ones(40)) < 0.001


def test_pairs_are_the_questions_that_both_answered():
    left = {"a": 1.0, "b": 1.0, "c": float("nan"), "d": 0.0}
    found = stats.percentile_difference(left, {"b": 0.0, "c": 1.0, "d": 0.0, "e": 1.0})
    assert (found.value, found.n) == (0.5, 2)
    assert stats.percentile_difference({"a": 1.0}, {"b": 1.0}).n == 0


def test_a_macro_average_weighs_data_sets_alike_and_its_interval_holds_its_value():
    found = stats.macro_mean([np.r_[np.ones(90), np.zeros(10)], np.r_[np.ones(1), np.zeros(9)]])
    assert found.value == pytest.approx(0.5) and found.low < 0.5 < found.high and found.n == 110


def test_nothing_scored_is_nan_and_one_question_has_no_width():
    assert np.isnan(stats.percentile_mean([]).value) and np.isnan(stats.macro_mean([[]]).value)
    assert stats.percentile_mean([1.0]) == stats.Estimate(1.0, 1.0, 1.0, 1)
