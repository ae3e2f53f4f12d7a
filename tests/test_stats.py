"""Intervals and tests against closed forms, hand-worked cases, exact enumeration and the numbers of earlier releases."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as scipy_stats

from benchmarks import coverage
from floatlens import stats
from floatlens.errors import FloatLensError
from recipes.tiny.card import wilson

SKEWED = np.array([0.31, 0.12, 0.55, 0.08, 0.91, 0.44, 0.27, 0.63, 0.19, 0.38, 1.7, 0.02])
OTHER = np.array([0.2, 0.25, 0.4, 0.1, 0.5, 0.6, 0.1, 0.2, 0.3, 0.3, 0.9, 0.15])
SCORES = np.array([1, 0, 1, 1, 0, 1, 0, 1.0])
IDS = [f"q{i}" for i in range(12)]


class TestIntervalOfMean:
    def test_a_sample_without_skewness_has_students_interval(self):
        values = np.arange(1.0, 13.0)
        value, interval = stats.interval_of_mean(values)
        student = scipy_stats.t.interval(0.95, 11, loc=6.5, scale=values.std(ddof=1) / np.sqrt(12))
        assert value == 6.5
        assert interval == pytest.approx(student)

    def test_the_long_tail_gets_the_end_that_solves_halls_cubic(self):
        n, t = len(SKEWED), scipy_stats.t.ppf(0.975, 11)
        bend = scipy_stats.skew(SKEWED, bias=False) / np.sqrt(n)
        root = optimize.brentq(lambda x: x + bend * (x * x / 3 + 1 / 6) + bend**2 * x**3 / 27 + t, -50, 0)
        error = SKEWED.std(ddof=1) / np.sqrt(n)
        _, (low, high) = stats.interval_of_mean(SKEWED)
        assert high == pytest.approx(SKEWED.mean() - error * root)  # right-skewed: the upper end is Hall's
        assert low == pytest.approx(SKEWED.mean() - error * t)  # and the lower one Student's
        assert high - SKEWED.mean() > 1.3 * (SKEWED.mean() - low)

    def test_it_follows_a_change_of_sign_of_unit_and_of_origin(self):
        _, (low, high) = stats.interval_of_mean(SKEWED)
        assert stats.interval_of_mean(-SKEWED)[1] == pytest.approx((-high, -low))
        assert stats.interval_of_mean(3 * SKEWED + 1)[1] == pytest.approx((3 * low + 1, 3 * high + 1))

    def test_real_values_that_are_all_zero_have_no_width_and_binary_ones_do(self):
        assert stats.interval_of_mean([0.0] * 20) == (0.0, (0.0, 0.0))
        # by hand: z² = 3.8415, share 1.9207 / 23.8415, half 1.96·sqrt(0.08056·0.91944 / 23.8415)
        value, (low, high) = stats.interval_of_mean([0.0] * 20, binary=True)
        assert (value, low) == (0.0, 0.0)
        assert high == pytest.approx(0.1898, abs=1e-4)

    def test_values_that_are_missing_are_left_out(self):
        with_gaps = np.concatenate([SKEWED, [np.nan, np.inf]])
        assert stats.interval_of_mean(with_gaps) == stats.interval_of_mean(SKEWED)
        for binary in (False, True):
            value, interval = stats.interval_of_mean([np.nan], binary=binary)
            assert np.isnan([value, *interval]).all()

    def test_binary_is_refused_for_other_values(self):
        with pytest.raises(FloatLensError, match=r"0 or 1, found 0\.5"):
            stats.interval_of_mean([0, 1, 0.5], binary=True)


class TestIntervalOfDifference:
    def test_real_pairs_are_the_mean_of_their_differences(self):
        a, b = np.append(SKEWED, np.nan), np.append(OTHER, 1.0)
        assert stats.interval_of_difference(a, b) == stats.interval_of_mean(SKEWED - OTHER)

    def test_binary_pairs_count_gains_and_losses(self):
        # 5 gains, 1 loss among 16, by hand: up 6/18, down 2/18, half 1.95996·sqrt((8/18 − (4/18)²) / 18)
        a = np.array([1] * 5 + [0] + [1] * 4 + [0] * 6)
        b = np.array([0] * 5 + [1] + [1] * 4 + [0] * 6)
        value, (low, high) = stats.interval_of_difference(a, b, binary=True)
        assert value == 0.25
        assert (low, high) == pytest.approx((0.2222 - 0.2904, 0.2222 + 0.2904), abs=1e-4)

    def test_sides_of_different_length_are_refused(self):
        with pytest.raises(FloatLensError, match="12 and 8; pair them by id"):
            stats.interval_of_difference(SKEWED, SCORES)


def test_a_contrast_of_scores_keeps_its_width_when_no_answer_changes():
    scores = np.tile([1.0, 1.0, 0.0, 0.0], (48, 1))
    value, (low, high) = stats.interval_of_contrast(scores, [1, -1, -2, 2])
    half = scipy_stats.norm.ppf(0.975) * np.sqrt(2 * (10 / 3)) / 50
    assert value == 0.0
    assert (low, high) == pytest.approx((-half, half))


class TestCoverage:
    """95 ± 1.5 % (plus twice the error of the simulation), never below 90 % for 0/1 values."""

    @pytest.mark.parametrize("n", coverage.SIZES)
    @pytest.mark.parametrize("name", ["normal", "gamma, shape 2", "exponential", "lognormal, sigma 0.5"])
    def test_means_of_normal_and_skewed_values(self, name: str, n: int) -> None:
        assert coverage.share_covered(*coverage.MEANS[name], n, repeats=8000) == pytest.approx(0.95, abs=0.02)

    @pytest.mark.parametrize("n", coverage.SIZES)
    @pytest.mark.parametrize("name", coverage.DIFFERENCES)
    def test_paired_differences(self, name: str, n: int) -> None:
        assert coverage.share_covered(*coverage.DIFFERENCES[name], n, repeats=8000) == pytest.approx(0.95, abs=0.02)

    @pytest.mark.parametrize("n", coverage.SIZES)
    def test_values_of_zero_and_one(self, n: int) -> None:
        for covered in (coverage.coverage_of_shares(n), coverage.coverage_of_paired_shares(n)):
            assert covered.mean() == pytest.approx(0.95, abs=0.015)
            assert covered.min() > 0.9

    def test_contrasts_of_zero_and_one(self) -> None:
        covered = coverage.coverage_of_contrasts(12, worlds=40, repeats=1000)
        assert covered.mean() == pytest.approx(0.95, abs=0.02)
        assert covered.min() > 0.88

    def test_twelve_samples_are_the_fewest_for_which_that_holds(self) -> None:
        assert stats.SMALLEST_N == 12
        assert coverage.coverage_of_paired_shares(11).min() < 0.9

    def test_strongly_skewed_values_are_known_to_fall_short(self) -> None:
        found = coverage.share_covered(*coverage.MEANS["lognormal, sigma 1 (hard)"], 12, repeats=8000)
        assert found == pytest.approx(0.923, abs=0.01)


class TestJudge:
    @pytest.mark.parametrize(
        ("interval", "n", "verdict"),
        [
            ((0.11, 0.3), 12, "holds"),
            ((0.10, 0.3), 12, "inconclusive"),
            ((-0.2, 0.09), 12, "fails"),
            ((0.0, 0.0), 12, "fails"),  # a true zero is decided
            ((0.02, 0.10), 12, "inconclusive"),
            ((float("nan"), float("nan")), 12, "not testable here"),
            ((0.11, 0.3), 11, "not testable here"),
        ],
    )
    def test_an_effect_of_one_tenth(self, interval: tuple[float, float], n: int, verdict: str) -> None:
        assert stats.judge(sum(interval) / 2, interval, n, effect=0.1) == verdict


class TestPValue:
    def test_it_is_students_for_a_sample_without_skewness(self):
        values = np.arange(1.0, 13.0)
        for null in (0.0, 5.0, 6.4, 9.0):
            expected = scipy_stats.ttest_1samp(values, null).pvalue
            assert stats.p_value(stats.interval_of_mean, values, null=null) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("null", np.linspace(0.05, 1.0, 12))
    def test_it_is_below_five_percent_exactly_where_the_interval_leaves_the_null_out(self, null: float) -> None:
        cases = [
            (stats.interval_of_mean, (SKEWED,), {}),
            (stats.interval_of_mean, (SCORES,), {"binary": True}),
            (stats.interval_of_difference, (SCORES, 1 - SCORES), {"binary": True}),
            (stats.interval_of_contrast, (np.stack([SCORES, 1 - SCORES], axis=1), [1, -1]), {}),
        ]
        for interval, data, settings in cases:
            low, high = interval(*data, **settings)[1]
            p = stats.p_value(interval, *data, null=float(null), **settings)
            assert (p < 0.05) == (not low <= null <= high)

    def test_intervals_are_nested_so_that_it_is_unique(self):
        for ones, n in [(0, 12), (1, 12), (6, 12), (24, 24)]:
            lows, highs = np.array([stats.agresti_coull(ones, n, level) for level in np.linspace(0.01, 0.999, 99)]).T
            assert (np.diff(lows) <= 1e-12).all() and (np.diff(highs) >= -1e-12).all()

    def test_nothing_has_no_p_value(self):
        assert np.isnan(stats.p_value(stats.interval_of_mean, [0.3]))


def test_holm_multiplies_the_smallest_by_all_and_never_turns_the_order():
    # Holm 1979: 0.005·4, 0.01·3, then 0.03·2 and max(0.04·1, 0.06)
    assert stats.holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, np.nan, 0.9]).tolist() == pytest.approx([1.0, np.nan, 1.0], nan_ok=True)
    assert stats.holm([]).tolist() == []


class TestRankCorrelation:
    def test_ties_share_their_rank_as_in_scipy(self):
        x, y = [1, 1, 2, 3, 3, 3, 4], [2, 1, 2, 5, 4, 4, 4]
        assert stats.spearman(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)

    def test_two_swaps_among_six_are_the_closed_form(self):
        assert stats.spearman(np.arange(6), [1, 0, 2, 3, 5, 4]) == pytest.approx(1 - 6 * 4 / (6 * 35))

    def test_it_only_sees_the_order_and_leaves_missing_pairs_out(self):
        gap = stats.spearman(np.append(SKEWED, np.nan), np.append(OTHER, 1.0))
        assert gap == stats.spearman(np.exp(SKEWED), OTHER**3)

    def test_a_constant_has_none(self):
        assert np.isnan(stats.spearman(SKEWED, np.ones(12)))


class TestSeededBootstrap:
    """Numbers of release 0.1 for the same samples: whoever moves to this module changes none of their results."""

    def test_percentile_intervals_and_permutation_p_values(self):
        assert stats.percentile_mean(SCORES) == stats.Estimate(0.625, 0.25, 0.875, 8)
        found = stats.percentile_mean(SKEWED, seed=3)
        assert (found.low, found.high) == pytest.approx((0.24916666666666668, 0.7492500000000003), rel=1e-12)
        difference = stats.percentile_difference(
            dict(zip(IDS, SKEWED, strict=True)), dict(zip(IDS, OTHER, strict=True))
        )
        ends = (-0.007499999999999993, 0.29583333333333334)
        assert (difference.low, difference.high) == pytest.approx(ends, rel=1e-12)
        assert difference.p == stats.sign_flip_p(SKEWED - OTHER) == 0.146484375
        macro = stats.macro_mean([SCORES, SKEWED])
        ends = (0.3399375000000001, 0.7562500000000001)
        assert (macro.value, macro.low, macro.high) == pytest.approx((0.5458333333333333, *ends), rel=1e-12)

    def test_curves(self):
        drawn = stats.resample_curves(np.stack([SKEWED, OTHER], axis=1))
        assert drawn.sum() == pytest.approx(1584.0641666666666, rel=1e-12)
        interval = stats.percentile_interval(drawn[:, 0])
        assert interval == pytest.approx((0.25333333333333335, 0.735875), rel=1e-12)

    def test_wilson(self):
        assert wilson(0.25, 40) == pytest.approx((0.14186967895549518, 0.40194259066970106), rel=1e-12)


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


def test_small_cases_are_those_of_the_closed_forms():
    for ends, expected in (
        (stats.student_hall(np.array([1.0, 2.0, 3.0])), (2 - 4.3027 / np.sqrt(3), 2 + 4.3027 / np.sqrt(3))),
        (stats.agresti_coull(9, 10), (0.574, 1.0)),
        (stats.bonett_price(0, 0, 12), (-0.198, 0.198)),
        (stats.bonett_wright(0.0, 19), (-0.454, 0.454)),
        (stats.percentile_interval(np.arange(41.0)), (1.0, 39.0)),
    ):
        assert [float(end) for end in ends] == pytest.approx(expected, abs=1e-3)
    assert stats.slope([0, 1, 2], np.array([[1.0, 0.5, 0.0]])).tolist() == [-0.5]
    assert stats.spearman([1, 2, 3], [10, 30, 20]) == 0.5
    assert stats.sign_flip_p([0.0, 0.0]) == 1.0
    assert stats.percentile_difference(dict.fromkeys("abc", 1), dict.fromkeys("abc", 0)).p == 0.25
    assert [stats.finite_or_none(x) for x in (0.5, np.nan)] == [0.5, None]
