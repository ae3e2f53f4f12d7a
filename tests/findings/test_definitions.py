"""The definitions on planted arrays: what can be worked out by hand comes out, for 8, 32 and 128 steps alike."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from floatlens.anchors import baseline, find_anchors
from floatlens.findings import definitions as d
from recipes.results import facts
from recipes.results.facts import slope, split_advantage
from tests.oracle import causal_baseline

STEPS = pytest.mark.parametrize("steps", [8, 32, 128])
PROMPT = 20


def sink_at(places: list[int], length: int = 64, share: float = 0.5) -> np.ndarray:
    """Received attention (step, position): `share` at the place of each step, the rest spread evenly."""
    a_ST = np.full((len(places), length), (1 - share) / (length - 1))
    a_ST[np.arange(len(places)), places] = share
    return a_ST


def anchors_of(a: np.ndarray, attention: str = "bidirectional") -> np.ndarray:
    return find_anchors(a, "sigma(3)", attention)


def mass(places: list[int], length: int = 64) -> np.ndarray:
    a_ST = sink_at(places, length)
    return d.anchor_mass(a_ST, anchors_of(a_ST))


def revealed(order: np.ndarray, steps: int) -> np.ndarray:
    """Masked positions (step, position): one answer position is revealed after each step, in the given order."""
    masked_ST = np.zeros((steps, PROMPT + steps), bool)
    for step in range(steps):
        masked_ST[step, PROMPT + order[step:]] = True
    return masked_ST


class TestUniformCausalAttention:
    """A model without any structure has no anchor, no sink and no drift."""

    def test_the_baseline_is_a_partial_harmonic_sum(self):
        expected = [(1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, (1 / 2 + 1 / 3 + 1 / 4) / 4, (1 / 3 + 1 / 4) / 4, 1 / 16]
        np.testing.assert_allclose(baseline(np.zeros(4), "causal"), expected)
        assert baseline(np.zeros(1000), "causal").sum() == pytest.approx(1)

    def test_without_the_baseline_position_0_looks_like_a_sink(self):
        for length, sigmas in ((24, 3.0), (52, 3.7)):
            u = causal_baseline(length)
            assert (u[0] - u.mean()) / u.std() == pytest.approx(sigmas, abs=0.05)
        assert np.flatnonzero(anchors_of(causal_baseline(52))).tolist() == [0]

    @pytest.mark.parametrize("precision", [np.float64, np.float32, np.float16])
    @pytest.mark.parametrize("length", [8, 24, 52, 400, 2000])
    def test_beyond_the_baseline_there_is_no_anchor_at_any_precision(self, length: int, precision: type) -> None:
        u = causal_baseline(length)
        anchors = anchors_of(u.astype(precision).astype(float), "causal")
        assert not anchors.any()
        assert d.absorption(u, anchors, u) == 0

    @STEPS
    def test_no_floating_while_the_sequence_grows(self, steps: int) -> None:
        a_ST = np.full((steps, PROMPT + steps), np.nan)
        for step in range(steps):
            a_ST[step, : PROMPT + step] = causal_baseline(PROMPT + step)
        p_ST = d.anchor_mass(a_ST, anchors_of(a_ST, "causal"))
        assert not d.has_anchors(p_ST).any()
        assert np.isnan(d.floating(p_ST)) and np.isnan(d.renewal(p_ST))

    def test_a_true_sink_is_found_beyond_the_baseline(self):
        u = causal_baseline(40)
        a = 0.7 * u
        a[0] += 0.3
        anchors = anchors_of(a, "causal")
        assert np.flatnonzero(anchors).tolist() == [0]
        assert d.absorption(a, anchors, u) == pytest.approx(100 * 0.3 * (1 - u[0]))


class TestFloating:
    @STEPS
    def test_a_fixed_sink_does_not_float(self, steps: int) -> None:
        p_ST = mass([5] * steps)
        assert d.floating(p_ST) == d.renewal(p_ST) == 0

    @STEPS
    def test_one_move_halfway(self, steps: int) -> None:
        # S/2 · S/2 of the S(S − 1)/2 pairs lie on either side of the move
        p_ST = mass([5] * (steps // 2) + [40] * (steps // 2))
        assert d.floating(p_ST) == pytest.approx(0.5 * steps / (steps - 1))
        assert d.renewal(p_ST) == 1

    @STEPS
    @pytest.mark.parametrize("share", [0.25, 0.75])
    def test_one_move_after_a_share_of_the_steps(self, steps: int, share: float) -> None:
        before = int(share * steps)
        p_ST = mass([5] * before + [40] * (steps - before))
        assert d.floating(p_ST) == pytest.approx(2 * share * (1 - share) * steps / (steps - 1))

    @STEPS
    def test_an_anchor_that_never_returns_floats_wholly(self, steps: int) -> None:
        p_ST = mass(list(range(steps)), length=160)
        assert d.floating(p_ST) == pytest.approx(1)
        assert d.renewal(p_ST) == pytest.approx(1)

    @STEPS
    def test_of_two_equal_anchors_the_one_that_moves_counts_half(self, steps: int) -> None:
        a_ST = np.full((steps, 64), 0.4 / 62)
        a_ST[:, 3] = 0.3
        a_ST[: steps // 2, 10] = a_ST[steps // 2 :, 30] = 0.3
        p_ST = d.anchor_mass(a_ST, anchors_of(a_ST))
        assert d.floating(p_ST) == pytest.approx(0.25 * steps / (steps - 1))
        assert d.renewal(p_ST) == pytest.approx(0.5)

    @STEPS
    def test_steps_without_anchors_are_left_out_up_to_one_half(self, steps: int) -> None:
        p_ST = mass([5] * (steps // 4) + [40] * (3 * steps // 4))
        p_ST[steps // 4 : 3 * steps // 4] = 0  # what is left has one move halfway
        assert d.has_anchors(p_ST).mean() == 0.5
        assert d.floating(p_ST) == pytest.approx(0.5 * (steps / 2) / (steps / 2 - 1))
        assert d.renewal(p_ST) == 1
        p_ST[0] = 0
        assert np.isnan(d.floating(p_ST)) and np.isnan(d.renewal(p_ST))

    def test_it_is_the_mean_over_all_pairs_for_any_mass(self):
        p_ST = np.random.default_rng(0).dirichlet(np.ones(9), 7)
        pairs = [np.abs(p_ST[i] - p_ST[j]).sum() / 2 for i, j in combinations(range(7), 2)]
        assert d.floating(p_ST) == pytest.approx(np.mean(pairs))

    def test_it_does_not_depend_on_a_cut_while_turnover_depends_on_the_number_of_steps(self):
        found = {}
        for steps in (8, 32, 128):
            a_ST = sink_at([5] * (steps // 2) + [40] * (steps // 2))
            found[steps] = facts.turnover(anchors_of(a_ST)).mean()
        assert found == pytest.approx({8: 1 / 7, 32: 1 / 31, 128: 1 / 127})


class TestShift:
    @STEPS
    @pytest.mark.parametrize("order", ["left to right", "right to left", "at random"])
    def test_uniform_attention_has_none_in_whatever_order_masks_are_revealed(self, steps: int, order: str) -> None:
        places = np.arange(steps)
        places = {
            "left to right": places,
            "right to left": places[::-1],
            "at random": np.random.default_rng(0).permutation(steps),
        }[order]
        masked_ST = revealed(places, steps)
        everywhere = np.full(masked_ST.shape, 1 / masked_ST.shape[1])
        on_visible = ~masked_ST / (~masked_ST).sum(axis=1, keepdims=True)
        for a_ST in (everywhere, on_visible, 0.3 * everywhere + 0.7 * on_visible):
            assert d.shift(a_ST, masked_ST, steps) == pytest.approx(0, abs=1e-12)

    @STEPS
    def test_the_null_moves_right_by_itself_from_left_to_right(self, steps: int) -> None:
        masked_ST = revealed(np.arange(steps), steps)
        on_visible = ~masked_ST / (~masked_ST).sum(axis=1, keepdims=True)
        # the visible part grows from the prompt to all but the last position, its middle by half a position per step
        assert d.movement(on_visible, steps) == pytest.approx((steps - 1) / 2 / steps)
        assert slope(d.centre(on_visible)) == pytest.approx(0.5)

    @STEPS
    def test_attention_that_follows_the_newest_token_moves_beyond_the_null(self, steps: int) -> None:
        masked_ST = revealed(np.arange(steps), steps)
        newest = np.eye(PROMPT + steps)[PROMPT - 1 : PROMPT + steps - 1]  # at the last visible position
        null = (steps - 1) / 2
        assert d.shift(newest, masked_ST, steps) == pytest.approx((steps - 1 - null) / steps)

    @STEPS
    def test_one_jump_counts_its_own_size_whenever_it_comes(self, steps: int) -> None:
        nothing_masked = np.zeros((steps, 64), bool)
        for after in (1, steps // 2, steps - 1):
            places = [10] * after + [26] * (steps - after)
            a_ST = np.eye(64)[places]
            assert d.shift(a_ST, nothing_masked, answer_length=32) == pytest.approx(0.5)

    def test_a_right_shift_of_the_mirror_image_is_a_left_shift(self):
        rng = np.random.default_rng(0)
        a_ST, masked_ST = rng.dirichlet(np.ones(30), 8), rng.random((8, 30)) < 0.4
        assert d.shift(a_ST[:, ::-1], masked_ST[:, ::-1], 10) == pytest.approx(-d.shift(a_ST, masked_ST, 10))

    def test_the_null_keeps_the_mass_on_masks(self):
        rng = np.random.default_rng(0)
        a_ST, masked_ST = rng.dirichlet(np.ones(30), 8), rng.random((8, 30)) < 0.4
        null = d.null_profile(a_ST, masked_ST)
        np.testing.assert_allclose((null * masked_ST).sum(1), (a_ST * masked_ST).sum(1))
        np.testing.assert_allclose(null.sum(1), 1)


class TestDescriptions:
    @STEPS
    def test_an_anchor_that_moves_every_fourth_step(self, steps: int) -> None:
        anchors = anchors_of(sink_at([step // 4 for step in range(steps)]))
        assert facts.turnover(anchors).mean() == pytest.approx((steps / 4 - 1) / (steps - 1))
        assert facts.dwell(anchors) == 4

    def test_positions_that_exist_at_both_steps_alone_count(self):
        anchors, exists = np.array([[1, 0, 0], [1, 0, 1]], bool), np.array([[1, 1, 0], [1, 1, 1]], bool)
        assert facts.turnover(anchors, exists).tolist() == [0.0]
        assert facts.turnover(anchors).tolist() == [0.5]

    def test_effective_positions_multiply_when_mass_is_spread_over_equal_parts(self):
        assert d.effective_positions(np.full(52, 1 / 52)) == pytest.approx(52)
        assert d.effective_positions(np.array([0.5, 0.5, 0, np.nan])) == pytest.approx(2)
        assert d.effective_positions(np.array([0.5, 0.25, 0.25])) == pytest.approx(2**1.5)


class TestLayers:
    @STEPS
    def test_layers_with_sinks_of_their_own_are_wholly_apart(self, steps: int) -> None:
        p_SLT = np.stack([mass([5] * steps), mass([9] * steps), mass([30] * steps)], axis=1)
        assert d.layer_distance(p_SLT) == (1.0, 0.0)

    @STEPS
    def test_layers_whose_anchors_move_together_do_not_differ(self, steps: int) -> None:
        places = [5] * (steps // 2) + [40] * (steps // 2)
        between, within = d.layer_distance(np.stack([mass(places)] * 3, axis=1))
        assert within == pytest.approx(0.5 * steps / (steps - 1)) == between

    def test_both_are_means_over_pairs_of_different_steps(self):
        p_SLT = np.random.default_rng(0).dirichlet(np.ones(6), (4, 3))
        p_SLT[2, 1] = 0  # a step without anchors
        cells = [(s, layer) for s in range(4) for layer in range(3) if (s, layer) != (2, 1)]
        between, within = [], []
        for (s, one), (t, other) in combinations(cells, 2):
            if s != t:
                (within if one == other else between).append(d.total_variation(p_SLT[s, one], p_SLT[t, other]))
        assert d.layer_distance(p_SLT) == pytest.approx((np.mean(between), np.mean(within)))


class TestTasks:
    def test_places_that_depend_on_the_task_are_told_from_chance(self):
        rng = np.random.default_rng(0)
        tasks = np.repeat(["question", "slots", "keys", "free"], 6)
        favour = {task: rng.dirichlet(np.ones(20)) for task in tasks}
        p_NT = np.array([rng.dirichlet(1 + 40 * favour[task]) for task in tasks])
        between, within, _, p = d.length_matched_tasks(p_NT, tasks, np.full(24, 20), resamples=999)
        assert between - within > 0.1 and p == 0.001

    def test_places_that_do_not_depend_on_it_give_p_values_spread_evenly(self):
        tasks, lengths = np.repeat(["a", "b"], 6), np.full(12, 8)
        samples = np.random.default_rng(1).dirichlet(np.ones(8), (200, 12))
        found = [
            d.length_matched_tasks(p_NT, tasks, lengths, resamples=99, seed=i)[3] for i, p_NT in enumerate(samples)
        ]
        assert np.mean(np.array(found) <= 0.2) == pytest.approx(0.2, abs=0.085)  # three standard errors
        assert np.mean(found) == pytest.approx(0.5, abs=0.065)

    def test_every_pair_counts_once(self):
        p_NT = np.random.default_rng(2).dirichlet(np.ones(5), 5)
        tasks = np.array(["a", "a", "b", "b", "b"])
        pairs = {True: [], False: []}
        for i, j in combinations(range(5), 2):
            pairs[bool(tasks[i] == tasks[j])].append(d.total_variation(p_NT[i], p_NT[j]))
        found = d.length_matched_tasks(p_NT, tasks, np.full(5, 5))
        assert found[:2] == pytest.approx((np.mean(pairs[False]), np.mean(pairs[True])))

    def test_one_task_has_nothing_to_compare_with(self):
        assert d.length_matched_tasks(np.eye(3), np.array(["a"] * 3), np.full(3, 3)) is None


class TestRetrieval:
    def test_scores_that_do_not_depend_on_depth_lie_in_the_middle(self):
        assert d.retrieval_depth(np.full((32, 32), 0.3)) == pytest.approx(0.5)
        assert np.isnan(facts.depth_correlation(np.full((32, 32), 0.3)))

    def test_scores_that_grow_with_the_layer(self):
        # sum of l·l over (L − 1)·sum of l = (2L − 1) / 3 / (L − 1)
        score_LH = np.repeat(np.arange(10.0)[:, None], 4, axis=1)
        assert d.retrieval_depth(score_LH) == pytest.approx(19 / 27)
        assert facts.depth_correlation(score_LH) == 1
        assert facts.depth_correlation(score_LH[::-1]) == -1

    def test_the_deep_half_leaves_the_middle_layer_out(self):
        score_LH = np.array([[0.2, 0.0], [0.9, 0.9], [0.6, 0.7]])
        assert facts.deep_share(score_LH, 0.1) == pytest.approx(2 / 3)
        assert facts.deep_share(score_LH, 0.5) == 1
        assert np.isnan(facts.deep_share(score_LH, 0.95))


class TestGeometry:
    ANCHOR = np.array([False, True, False, False])

    def test_a_longer_key_in_the_same_direction_wins_by_norm_alone(self):
        norm, cos = np.array([2.0, 5.0, 2.0, 2.0]), np.full(4, 0.3)
        assert split_advantage(cos * norm, cos, norm, self.ANCHOR).shares() == pytest.approx((0, 1, 0))

    def test_a_short_key_can_win_against_its_norm(self):
        norm, cos = np.array([4.0, 2.0, 4.0, 4.0]), np.array([0.1, 0.9, 0.1, 0.1])
        # advantage 1.8 − 0.4; angle 0.8·3 = 2.4; norm −2·0.5 = −1
        split = split_advantage(cos * norm, cos, norm, self.ANCHOR)
        assert split == pytest.approx((1.4, 2.4, -1.0, 0.0), abs=1e-12)
        assert split.shares() == pytest.approx((2.4 / 1.4, -1 / 1.4, 0), abs=1e-12)

    def test_parts_and_remainder_sum_to_the_advantage_and_the_remainder_is_a_covariance(self):
        rng = np.random.default_rng(0)
        cos, norm = rng.random((5, 4)), 1 + rng.random((5, 4))
        split = split_advantage(cos * norm, cos, norm, self.ANCHOR)
        np.testing.assert_allclose(split.angle + split.norm + split.remainder, split.advantage)
        others = [np.cov(cos[q, ~self.ANCHOR], norm[q, ~self.ANCHOR], bias=True)[0, 1] for q in range(5)]
        np.testing.assert_allclose(split.remainder, -np.array(others))

    def test_a_hidden_cell_is_left_out_of_all_three(self):
        cos, norm = np.array([0.2, 0.6, 0.2, 9.0]), np.array([2.0, 4.0, 2.0, 9.0])
        score = cos * norm
        score[3] = np.nan
        assert split_advantage(score, cos, norm, self.ANCHOR)[:3] == pytest.approx((2.0, 1.2, 0.8))


class TestFlow:
    def test_a_long_region_gets_no_more_per_token(self):
        flow = np.array([0.5, 0.25, 0.25])
        np.testing.assert_allclose(d.flow_per_token(flow, np.array([100, 50, 50])), 0.005)

    @pytest.mark.parametrize("regions", [2, 5, 13])
    def test_uniform_layers_converge_by_one_half_each(self, regions: int) -> None:
        # (A + I)/2 halves the distance of two rows: 2^−(layer + 1) stays at 0.1 or above up to layer 2
        flow_LRR = np.full((32, regions, regions), 1 / regions)
        rollout, layer = d.rollout_while_rows_differ(flow_LRR)
        assert layer == 2
        np.testing.assert_allclose(rollout, np.eye(regions) / 8 + 7 / 8 / regions)

    def test_layers_that_keep_to_themselves_never_converge(self):
        rollout, layer = d.rollout_while_rows_differ(np.tile(np.eye(3), (6, 1, 1)))
        assert layer == 5
        np.testing.assert_allclose(rollout, np.eye(3))

    def test_the_distance_of_rows_never_grows(self):
        rng = np.random.default_rng(0)
        through, before = np.eye(4), 1.0
        for flow_RR in rng.dirichlet(np.ones(4) / 3, (8, 4)):
            through = (flow_RR + np.eye(4)) / 2 @ through
            now = d.largest_row_distance(through)
            assert now <= before + 1e-12
            before = now

    def test_a_region_that_does_not_exist_stays_missing(self):
        flow_LRR = np.full((4, 3, 3), 0.5)
        flow_LRR[:, 1] = flow_LRR[:, :, 1] = np.nan
        rollout, layer = d.rollout_while_rows_differ(flow_LRR)
        assert layer == 2
        assert np.isnan(rollout[1]).all() and np.isnan(rollout[:, 1]).all()
        np.testing.assert_allclose(rollout[np.ix_([0, 2], [0, 2])], [[0.5625, 0.4375], [0.4375, 0.5625]])


YES, NO = True, False
FIRST = np.array([YES, NO, NO])
ANCHORS = np.array([[YES, NO], [YES, NO], [NO, YES]])
MOVED = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
SPREAD = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
SHIFTED, MASKED = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]), np.array([[NO, YES, YES], [NO, NO, NO]])
HALF_EMPTY = np.array([[0.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (d.absorption(np.array([0.7, 0.2, 0.1]), FIRST), 70.0),
        (d.absorption(np.array([0.7, 0.2, 0.1]), FIRST, np.full(3, 0.3)), 40.0),
        (d.anchor_mass(np.array([[0.3, 0.1, 0.6], [0.4, 0.3, 0.3]]), MASKED[:, ::-1]), [[0.75, 0.25, 0], [0, 0, 0]]),
        (d.effective_positions(np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])), [4, 1]),
        (d.floating(MOVED), 4 / 6),
        (d.renewal(SPREAD), 0.5),
        (
            d.renewal(
                np.array([[0.4, 0.0], [0.0, 0.1], [0.0, 0.1], [0.0, 0.4], [0, 0.4], [0, 0.4], [0, 0.4], [0.1, 0]])
            ),
            abs(0.4 / 0.5 - 0.1 / 0.5),
        ),
        (
            d.reveal_null(np.array([[0.4, 0.3, 0.3], [0.2, 0.6, 0.2]]), np.array([[YES, NO, NO], [YES, YES, NO]])),
            [[3 / 11, 4 / 11, 4 / 11], [3 / 16, 9 / 16, 4 / 16]],
        ),
        (d.has_anchors(HALF_EMPTY), [NO, YES]),
        (d.total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0])), 0.5),
        (d.centre(np.array([[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]])), [1.5, np.nan]),
        (d.movement(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), answer_length=2), 1.0),
        (d.shift(SHIFTED, MASKED, answer_length=2), (1.25 - 0.75) / 2 - (1 - 0.75) / 2),
        (d.null_profile(np.array([[0.1, 0.5, 0.4, 0.0]]), np.array([[NO, NO, YES, YES]])), [[0.3, 0.3, 0.2, 0.2]]),
        (facts.turnover(ANCHORS), [0, 1]),
        (facts.dwell(ANCHORS), 1.5),
        (d.retrieval_depth(np.array([[0.25, 0.0], [0.25, 0.0], [0.5, 1.0]])), (0.25 * 0.5 + 1.5 * 1) / 2),
        (d.retrieval_depth(np.array([[0.0], [0.5], [np.nan]]), np.array([0.0, 1.0, np.nan])), 1.0),
        (facts.depth_correlation(np.array([[0.0, 0.1], [0.2, 0.2], [0.9, 0.1]])), 1.0),
        (facts.deep_share(np.array([[0.2, 0.0], [0.6, 0.7]]), above=0.1), 2 / 3),
        (d.flow_per_token(np.array([0.6, 0.4, 0.0]), np.array([30, 10, 0])), [0.02, 0.04, np.nan]),
        (d.largest_row_distance(np.array([[1.0, 0.0], [0.5, 0.5], [0.75, 0.25]])), 0.5),
        (d.length_matched_tasks(np.tile(np.eye(2), (3, 1)), np.array(["a", "b"] * 3), np.full(6, 2))[2], np.ones(6)),
    ],
)
def test_small_cases_worked_out_by_hand(found: np.ndarray, by_hand: np.ndarray) -> None:
    np.testing.assert_allclose(found, by_hand, atol=1e-12)
